"""Define mkdocs hooks that add repository files to the site, at their paths in the repository, if pages link to them.

Pages link to files outside `docs/`, such as `../scripts/results/recipes/COMMAND.md`, by their relative path. mkdocs
reads only `docs/`, so `on_files` adds these files and the files that they link to, and `on_page_markdown` rewrites the
links. Links to the README become links to `index.md`.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")


def target(page: Path, link: str) -> Path | None:
    """Return the repository file that a page's link refers to, or None if there is no such file."""
    file = Path(os.path.normpath(page.parent / link))
    return file if file.is_file() and file.is_relative_to(ROOT) else None


def uri(file: Path) -> str:
    """Return the path of a file on the site."""
    if file == ROOT / "README.md":
        return "index.md"
    return file.relative_to(DOCS if file.is_relative_to(DOCS) else ROOT).as_posix()


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside `docs/` that pages link to, directly or through other such files."""
    pages = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    while pages:
        page = pages.pop()
        for found in filter(None, (target(page, link) for link in LINK.findall(page.read_text()))):
            if uri(found) not in files.src_uris:
                files.append(File(uri(found), str(ROOT), config.site_dir, config.use_directory_urls))
                pages += [found] if found.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links that leave `docs/`, so that they refer to the files that `on_files` added.

    A page without a title (scripts/results/*/COMMAND.md) gets the name of its folder as its title.
    """
    source, folder = Path(page.file.abs_src_path), Path(page.file.src_uri).parent

    def rewritten(link: re.Match[str]) -> str:
        found = target(source, link[0])
        return os.path.relpath(uri(found), folder) if found else link[0]

    title = "" if re.search(r"^# ", markdown, flags=re.MULTILINE) else f"# {folder.name}\n\n"
    return title + LINK.sub(rewritten, markdown)
