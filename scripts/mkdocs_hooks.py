"""Hooks of mkdocs: add to the site the repository files to which a page links, under their path in the repository.

A page links to a file such as `../scripts/results/recipes/COMMAND.md` by its path in the repository. mkdocs reads only
`docs/`, so `on_files` adds such files (and those to which they link), and `on_page_markdown` rewrites the links. Links
to the README lead to `index.md`.
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
    """Return the file of the repository to which a link of a page leads, or None if there is no such file."""
    file = Path(os.path.normpath(page.parent / link))
    return file if file.is_file() and file.is_relative_to(ROOT) else None


def uri(file: Path) -> str:
    """Return the path of a file on the site."""
    if file == ROOT / "README.md":
        return "index.md"
    return file.relative_to(DOCS if file.is_relative_to(DOCS) else ROOT).as_posix()


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside `docs/` to which pages of the site link, directly or through other such files."""
    pages = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    while pages:
        page = pages.pop()
        for found in filter(None, (target(page, link) for link in LINK.findall(page.read_text()))):
            if uri(found) not in files.src_uris:
                files.append(File(uri(found), str(ROOT), config.site_dir, config.use_directory_urls))
                pages += [found] if found.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links that leave `docs/`, so that they lead to the files that `on_files` added.

    A page without a heading of its own (scripts/results/*/COMMAND.md) gets the name of its folder.
    """
    source, folder = Path(page.file.abs_src_path), Path(page.file.src_uri).parent

    def rewritten(link: re.Match[str]) -> str:
        found = target(source, link[0])
        return os.path.relpath(uri(found), folder) if found else link[0]

    title = "" if re.search(r"^# ", markdown, flags=re.MULTILINE) else f"# {folder.name}\n\n"
    return title + LINK.sub(rewritten, markdown)
