"""Lock a file of a run directory."""

from __future__ import annotations

import fcntl
from typing import IO

from outerloop.types import UserError


def lock_file(file: IO[str], operation: int) -> None:
    """Lock an open file: fcntl.flock(file, operation).

    Raises BlockingIOError if another process holds the lock and `operation` contains LOCK_NB. Raises UserError if the
    file system has no locks.
    """
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        raise UserError(
            f"the file system of {file.name} has no file locks ({error.strerror}): set run_dir= to a folder on another"
            " disk"
        ) from error
