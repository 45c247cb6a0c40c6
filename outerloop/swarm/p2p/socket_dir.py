"""A private folder for the unix sockets between Python and p2pd. Orphaned folders are removed.

The folder is in /tmp because a unix socket's path is limited to 107 bytes. The peer that owns the folder keeps it
locked until its process ends, and renames it to its final name only after locking it. So an unlocked folder with a
final name belongs to a peer that was killed. The next peer on the machine, or the command that started the killed
worker, removes that folder.
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
YOUNG_S = 60.0  # the owner of an unnamed folder younger than this may be about to lock it


class SocketFolder:
    """The socket folder of one peer. It exists at `path` until `remove` is called."""

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
    """Remove the folders that killed peers on this machine have left behind."""
    unnamed = [path for path in TMP.glob(UNNAMED + "*") if _age_s(path) > YOUNG_S]
    for path in [*TMP.glob(PREFIX + "*"), *unnamed]:
        with suppress(OSError):  # owned by another user, still locked, or already removed by another process
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
