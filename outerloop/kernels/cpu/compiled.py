"""Compile loops with numba so that they run without the GIL, and cache their machine code for later processes.

numba checks cached code only against the file of the function itself, although functions from other files are inlined
into it. After an edit of such a file, numba would keep using the old code. So the name of the cache folder contains a
hash of all files of this package. Folders with other hashes may be used by other checkouts, so they are only deleted
once no process has used them for UNUSED_S.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import xxhash
from numba import config, njit
from numba.core.caching import FunctionCache

UNUSED_S = 30 * 86400
"""Seconds without use after which a cache folder is deleted."""


def source_digest(package: Path) -> str:
    """Hash the names and contents of the Python files in a folder. Return 16 hex digits."""
    content = xxhash.xxh3_64()
    for file in sorted(package.glob("*.py")):
        code = file.read_bytes()
        content.update(f"{file.name}\0{len(code)}\0".encode() + code)
    return content.hexdigest()


def writable_folder() -> Path | None:
    """Create the cache folder, and delete unused ones. Return the folder, or None if it is not writable.

    The folder is outerloop/loops-<hash> in NUMBA_CACHE_DIR, or else XDG_CACHE_HOME, or else ~/.cache.
    """
    base = config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(base) / "outerloop" / f"loops-{source_digest(Path(__file__).parent)}"
    try:
        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        pass
    if os.access(folder, os.W_OK):
        os.utime(folder)
        delete_unused(folder.parent, now_s=time.time())
        return folder
    logging.getLogger(__name__).warning(
        "the cache folder %s is not writable, so every process compiles its loops again: set NUMBA_CACHE_DIR to a"
        " writable folder",
        folder,
    )
    return None


def delete_unused(parent: Path, *, now_s: float) -> None:
    """Delete the cache folders in `parent` that no process has used for UNUSED_S seconds."""
    for folder in parent.glob("loops-*"):
        try:
            if now_s - folder.stat().st_mtime > UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:  # another process has just deleted it
            pass


FOLDER = writable_folder()


class LoopCache(FunctionCache):
    """The cache files of one loop. If they cannot be read or written, the loop is compiled in memory."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the machine code for these argument types from the cache. Return None if the loop must be compiled.

        If a file of the cache cannot be read, delete the list of cached files, so that they are all written again.
        """
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling a damaged file may raise almost any error
            warn_once(f"files in the cache folder {FOLDER} are damaged: their loops are compiled again")
            with suppress(OSError):
                Path(self._cache_file._index_path).unlink()  # without it, numba replaces the files with machine code
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the machine code for these types to the cache, if possible."""
        try:
            super().save_overload(sig, data)
        except (OSError, EOFError, UnpicklingError) as error:  # it reads the index before it writes
            reason = error.strerror if isinstance(error, OSError) else "its files are damaged"
            warn_once(
                f"cannot write to the cache folder {FOLDER} ({reason}), so later processes compile loops again: free"
                " disk space, or set NUMBA_CACHE_DIR to another folder"
            )


@cache
def warn_once(line: str) -> None:
    """Log a warning, unless this process has already logged it."""
    logging.getLogger(__name__).warning(line)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the decorated loop, or load it from the cache, at its first call with each combination of types."""
    loop = njit(nogil=True, error_model="numpy")(function)
    before, config.CACHE_DIR = config.CACHE_DIR, str(FOLDER or "")
    try:
        if FOLDER is not None:
            loop._cache = LoopCache(function)
    finally:
        config.CACHE_DIR = before
    return loop
