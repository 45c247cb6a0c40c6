"""Something that one of several workers shall do, whoever comes first, be it that the first is killed over it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_once(path: Path, what: str) -> Iterator[bool]:
    """One at a time; whether this one is to do it. `path` says what was done last: a block that raises or is killed
    has done nothing."""
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given free with the process at the latest
        file.seek(0)
        mine = file.read() != what
        yield mine
        if mine:
            file.truncate(0)
            file.write(what)
