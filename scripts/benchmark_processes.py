"""Run the processes of a benchmark: report failures immediately, and leave no process behind."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from queue import Empty
from typing import Any


class Peers:
    """Processes that put messages into one queue. They are terminated at the end of the `with` block.

    Args:
        wait_s: longest time to wait for a message, in seconds.
    """

    def __init__(self, *, wait_s: float) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.messages: Queue[Any] = self.context.Queue()
        self.processes: list[SpawnProcess] = []
        self.wait_s = wait_s

    def start(self, work: Callable[..., None], *of: object) -> None:
        """Start a process that calls `work(*of, messages)`; `messages` is the queue."""
        self.processes.append(self.context.Process(target=work, args=(*of, self.messages), daemon=True))
        self.processes[-1].start()

    def next_message(self, *, but: SpawnProcess | None = None) -> Any:
        """Return the next message.

        Raises RuntimeError if a process other than `but` failed, TimeoutError after `wait_s`.
        """
        others = [process for process in self.processes if process is not but]
        ends_s = time.monotonic() + self.wait_s
        while time.monotonic() < ends_s:
            with suppress(Empty):
                return self.messages.get(timeout=1.0)
            raise_if_failed(others)
        raise TimeoutError(f"no message arrived for {self.wait_s:g} s")

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.terminate()
            process.join()


def raise_if_failed(processes: Sequence[SpawnProcess]) -> None:
    """Raise RuntimeError with the names of the failed processes, if there are any."""
    if failed := [f"{one.name} (exit {one.exitcode})" for one in processes if one.exitcode]:
        raise RuntimeError(f"{', '.join(failed)} failed: see the output above")
