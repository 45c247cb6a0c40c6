"""Loops compiled by numba: they release the GIL, and their machine code is kept for the next process.

numba asks of kept code only whether the function's own file has changed, though what it calls from other files is
inlined: after an edit there it would go on with the old. So the folder is named by the content of all files of this
package. Folders of other content stay, since other checkouts may use them; they can be deleted at any time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
from numba import config, njit


def content_of(package: Path) -> str:
    """16 hex digits of the names and the contents of the Python files in a folder."""
    content = xxhash.xxh3_64()
    for file in sorted(package.glob("*.py")):
        code = file.read_bytes()
        content.update(f"{file.name}\0{len(code)}\0".encode() + code)
    return content.hexdigest()


def writable_folder() -> Path | None:
    """<NUMBA_CACHE_DIR, XDG_CACHE_HOME or ~/.cache>/outerloop/loops-<content>; None where that cannot be written."""
    base = config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(base) / "outerloop" / f"loops-{content_of(Path(__file__).parent)}"
    try:
        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the second: nobody's home
        pass
    if os.access(folder, os.W_OK):
        return folder
    logging.getLogger(__name__).warning("every process compiles its loops anew: %s cannot be written", folder)
    return None


FOLDER = writable_folder()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a loop: compiled for the types of its arguments when it is first called with them, or loaded."""
    before, config.CACHE_DIR = config.CACHE_DIR, str(FOLDER or "")
    try:
        return njit(nogil=True, error_model="numpy", cache=FOLDER is not None)(function)
    finally:
        config.CACHE_DIR = before
