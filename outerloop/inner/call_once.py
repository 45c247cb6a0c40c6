"""Run a task in exactly one of several workers. If that worker is killed first, another one takes over."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_once(path: Path, what: str) -> Iterator[bool]:
    """Enter the block in one process at a time, and yield whether this process has to do the task.

    `path` stores the task (`what`) that was completed last. A block that raises or is killed does not count as done.
    """
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the process ends, at the latest
        file.seek(0)
        mine = file.read() != what
        yield mine
        if mine:
            file.truncate(0)
            file.write(what)
