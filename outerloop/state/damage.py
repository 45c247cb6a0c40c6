"""Distinguish damaged files from files that cannot be read at the moment. Only damaged ones may be discarded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from outerloop.types import UserError

PIECE_BYTES = 1 << 20
"""Size of the pieces in which files are read for hashing, because a shard may be too large for memory."""
MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors that mean that a file does not exist. Any other OSError may be temporary, for example on a network file
system, so it does not show that the file is damaged."""
CONTINUE = "run the same command again once it can be read, or move it elsewhere to continue without it"
CORRECT = "correct the name, or let this user read the folder"
"""Advice for messages about a file that cannot be read: CONTINUE if a run is resumed from it, CORRECT otherwise."""


def is_valid(path: Path, expected: dict[str, Any]) -> bool:
    """Return whether a file exists and has the expected fingerprint. Raises OSError if it cannot be read."""
    try:
        return file_fingerprint(path) == expected
    except (*MISSING, ValueError):  # ValueError: not a possible file name
        return False


def file_fingerprint(path: Path) -> dict[str, Any]:
    """Return the length and hash of the file at `path`. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return fingerprint(file)


def fingerprint(file: BinaryIO) -> dict[str, Any]:
    """Return the length and hash of an open file, from which damage can be detected."""
    size, content = 0, xxhash.xxh3_128()
    while piece := file.read(PIECE_BYTES):
        size += len(piece)
        content.update(piece)
    return {"bytes": size, "xxh3_128": content.hexdigest()}


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, none if it does not exist. Raises UserError if it cannot be read."""
    with refuse_unreadable(folder):
        try:
            return [entry.name for entry in folder.iterdir()]
        except MISSING:
            return []


@contextmanager
def refuse_unreadable(path: Path, *, mend: str = CONTINUE) -> Iterator[None]:
    """Turn an OSError of the block, which reads `path` or files in it, into a UserError. `mend`: advice to the user."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): {mend}") from error
