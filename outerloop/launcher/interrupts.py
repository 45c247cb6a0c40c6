"""Handle Ctrl-C and SIGTERM while a run trains: signals in quick succession count as one.

`timeout`, and other programs that stop a run, signal its process and then its process group, so that the process
receives the signal twice. A second interrupt stops a run without saving (supervisor.py), so a repetition within SAME_S
must not count as one.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from types import FrameType

from outerloop.types import Terminated

SAME_S = 1.0
"""Seconds after a SIGINT or SIGTERM in which another one is ignored."""


class InterruptHandler:
    """A signal handler that raises KeyboardInterrupt on SIGINT and Terminated on SIGTERM.

    Signals within SAME_S after one that raised are ignored.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.raised_s = clock, -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now_s = self.clock()
        if now_s < self.raised_s + SAME_S:
            return
        self.raised_s = now_s
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def install() -> None:
    """Handle SIGTERM and SIGINT with a new InterruptHandler. An ignored SIGINT, as in the background, stays ignored."""
    handler = InterruptHandler()
    signal.signal(signal.SIGTERM, handler)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)
