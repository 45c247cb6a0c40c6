"""Retry operations that failed for lack of file descriptors or disk space, which are temporary conditions.

A run that takes days must not end because a log filled the disk for a minute. A failed operation is retried until it
succeeds, and a log line states what to do. Each condition is logged at most once per QUIET_S.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from outerloop.swarm.timeouts import EXHAUSTED_S

logger = logging.getLogger(__name__)
T = TypeVar("T")
REMEDIES = {
    errno.EMFILE: "raise the limit of this process: ulimit -n 65536",
    errno.ENFILE: "end other programs, or raise the limit of this machine: sysctl fs.file-max",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
}
QUIET_S = 30.0
MAX_FILES = 65_536
"""The limit on open files that a process requests, enough for the streams of 1,024 members (admission.py)."""


class ResourceExhaustion:
    """The retry logic of a process, which remembers when it last logged each condition."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._told_s: dict[int, float] = {}

    def note(self, error: BaseException | None, *, where: str = "") -> bool:
        """Return whether an error means a lack of file descriptors or disk space.

        If so, log the error, but at most once per QUIET_S.
        """
        if not isinstance(error, OSError) or error.errno not in REMEDIES:
            return False
        now_s = self._now_s()
        if now_s - self._told_s.get(error.errno, -QUIET_S) >= QUIET_S:
            self._told_s[error.errno] = now_s
            place = f" at {where}" if where else ""
            logger.warning("%s%s: waiting until this has passed; %s", _said(error), place, REMEDIES[error.errno])
        return True

    async def wait_out(self, attempt: Callable[[], Awaitable[T]], *, where: str = "") -> T:
        """Return the result of `attempt`. Retry it as long as it fails for lack of file descriptors or disk space.

        The caller sets the time limit. Raises any other error of `attempt`.
        """
        while True:
            try:
                return await attempt()
            except OSError as error:
                if not self.note(error, where=where):
                    raise
            await asyncio.sleep(EXHAUSTED_S)

    def quiet(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error that the event loop reports, e.g. that a connection could not be accepted."""
        if not self.note(context.get("exception")):
            loop.default_exception_handler(context)


EXHAUSTION = ResourceExhaustion()
"""The only instance in this process, so that each condition is logged at most once per QUIET_S."""


def raise_file_limit() -> None:
    """Let this process open as many files as the hard limit allows, up to MAX_FILES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _said(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()
