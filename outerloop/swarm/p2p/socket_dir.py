"""A private folder for the unix sockets between Python and p2pd, and none left behind.

It lies in /tmp because a unix socket's path may not be longer than 107 bytes. Its owner holds a lock on it for as long
as it lives, and gives it its name only once it does: a folder of that name that nobody locks is of a peer that was
killed. The next peer on the machine removes it, or the command whose worker that peer was.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

TMP = Path("/tmp")
PREFIX = "outerloop-swarm-"
UNNAMED = "outerloop-new-"
YOUNG_S = 60.0  # without its name yet, a folder this young may be about to be locked


class SocketFolder:
    """One peer's folder of sockets: `path`, until `remove`."""

    def __init__(self) -> None:
        remove_orphans()
        made = Path(tempfile.mkdtemp(prefix=UNNAMED, dir=TMP))  # mode 0700
        self._lock = os.open(made, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = made.rename(made.with_name(made.name.replace(UNNAMED, PREFIX, 1)))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_orphans() -> None:
    """The folders of peers of this machine that were killed."""
    unnamed = [path for path in TMP.glob(UNNAMED + "*") if _age_s(path) > YOUNG_S]
    for path in [*TMP.glob(PREFIX + "*"), *unnamed]:
        with suppress(OSError):  # another user's, still locked, or removed by somebody else just now
            _remove_if_unlocked(path)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove_if_unlocked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(descriptor)
