"""Handle Ctrl-C (SIGINT) and SIGTERM.

An ignored SIGINT, as of a program that a shell runs in the background, stays ignored.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

REPEAT_WINDOW_S = 1.0
"""Seconds after a SIGINT or SIGTERM in which another one is ignored."""


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM. It shuts down cleanly, as after Ctrl-C, but with exit code 143."""


def raise_terminated(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM by raising Terminated."""
    raise Terminated


class InterruptHandler:
    """A signal handler that raises KeyboardInterrupt on SIGINT and Terminated on SIGTERM.

    Signals within REPEAT_WINDOW_S after one that raised are ignored: `timeout` and others signal a process and then its
    group, so it receives the signal twice, but a second interrupt stops a run without saving (supervisor.py).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.raised_s = clock, -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now_s = self.clock()
        if now_s >= self.raised_s + REPEAT_WINDOW_S:
            self.raised_s = now_s
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def handle_interrupts() -> None:
    """Install an InterruptHandler for SIGINT and SIGTERM."""
    handler = InterruptHandler()
    set_handlers({signal.SIGINT: handler, signal.SIGTERM: handler})


@contextmanager
def signals_handled(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Set these signal handlers inside the block. Do nothing if this is not the main thread, which handles signals."""
    is_main = threading.current_thread() is threading.main_thread()
    earlier = set_handlers(handlers) if is_main else {}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def set_handlers(handlers: Mapping[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Set signal handlers, except for an ignored SIGINT. Return those that they replace."""
    ignored = {signal.SIGINT} if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else set()
    return {number: signal.signal(number, handlers[number]) for number in handlers.keys() - ignored}
