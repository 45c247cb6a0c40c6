"""A private folder for the unix sockets between Python and p2pd, and none left behind.

It lies in /tmp because a unix socket's path may not be longer than 107 bytes. Its owner holds a lock on it for as long
as it lives, so whoever finds a folder that nobody locks knows that its owner was killed, and removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "outerloop-swarm-"
YOUNG_S = 60.0  # a folder this young may not be locked yet by the one who is making it


class SocketFolder:
    """One peer's folder of sockets: `path`, until `remove`."""

    def __init__(self) -> None:
        _remove_orphans()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))  # mode 0700
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_orphans() -> None:
    for path in Path("/tmp").glob(PREFIX + "*"):
        with suppress(OSError):  # another user's, still locked, or removed by somebody else just now
            if time.time() - path.stat().st_mtime > YOUNG_S:
                _remove_if_unlocked(path)


def _remove_if_unlocked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(descriptor)
