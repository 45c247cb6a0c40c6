"""Retry operations that fail because file descriptors or disk space have run out.

Such conditions are temporary: a run that takes days must not end because a log filled the disk for a minute. A failed
operation is retried until it succeeds, and a log line states what to do. Each condition is logged at most once per
QUIET_S.
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
    errno.EMFILE: "raise the limit of this process: run ulimit -n 65536",
    errno.ENFILE: "close other programs, or raise this machine's limit: sysctl fs.file-max",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
}
QUIET_S = 30.0
MAX_FILES = 65_536
"""The open-file limit that a process requests; enough for the streams of 1,024 members (admission.py)."""


class ResourceExhaustion:
    """Retries operations that fail because file descriptors or disk space have run out, and logs each condition."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._told_s: dict[int, float] = {}

    def note(self, error: BaseException | None, *, where: str = "") -> bool:
        """Return whether `error` means that file descriptors or disk space have run out.

        If so, log it, but each kind of error at most once per QUIET_S.
        """
        if not isinstance(error, OSError) or error.errno not in REMEDIES:
            return False
        now_s = self._now_s()
        if now_s - self._told_s.get(error.errno, -QUIET_S) >= QUIET_S:
            self._told_s[error.errno] = now_s
            place = f" at {where}" if where else ""
            logger.warning("%s%s: retrying until it succeeds; %s", _said(error), place, REMEDIES[error.errno])
        return True

    async def wait_out(self, attempt: Callable[[], Awaitable[T]], *, where: str = "") -> T:
        """Return the result of `attempt`, retrying while file descriptors or disk space have run out.

        The number of retries is not limited: the caller sets the time limit. Any other error of `attempt` is raised.
        """
        while True:
            try:
                return await attempt()
            except OSError as error:
                if not self.note(error, where=where):
                    raise
            await asyncio.sleep(EXHAUSTED_S)

    def quiet(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error reported by the event loop, e.g. a connection that could not be accepted.

        Resource exhaustion is only logged; any other error is passed to the loop's default handler.
        """
        if not self.note(context.get("exception")):
            loop.default_exception_handler(context)


EXHAUSTION = ResourceExhaustion()
"""The process-wide instance: each condition is logged at most once per QUIET_S in the whole process."""


def raise_file_limit() -> None:
    """Raise this process's open-file limit to the hard limit, or to MAX_FILES if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _said(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()
