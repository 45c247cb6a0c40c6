"""Serve the source code of the Python standard library: 12 MB of text that every machine with Python already has.

Bytes are tokens, and 5 % of the files are held out for validation. The text differs slightly between Python versions.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from outerloop.inner.data.documents import Document, Documents
from outerloop.inner.data.tokenization import Bytes

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def stdlib(*, non_iid: bool) -> Documents:
    """Return the corpus of the standard library.

    Args:
        non_iid: whether to assign whole top-level packages to workers, so that they see different kinds of code.
    """
    root = Path(sysconfig.get_path("stdlib"))
    documents = [Document(path.relative_to(root).as_posix(), path, path.stat().st_size) for path in sources(root)]
    return Documents(documents, encoding=Bytes(), what=f"data=stdlib ({root})", whole_packages=non_iid)


def sources(folder: Path) -> Iterator[Path]:
    """Yield every .py file under `folder`, except tests and installed packages."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in SKIPPED:
            yield from sources(path)
        elif path.suffix == ".py":
            yield path
