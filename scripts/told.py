"""The processes of a benchmark and what they tell: one that fails is heard of at once, and none is left at the end."""

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
    """Processes that put what they have to tell into one queue; they end with the `with` block.

    Args:
        wait_s: the longest silence.
    """

    def __init__(self, *, wait_s: float) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.told: Queue[Any] = self.context.Queue()
        self.processes: list[SpawnProcess] = []
        self.wait_s = wait_s

    def start(self, work: Callable[..., None], *of: object) -> None:
        """One more, which does `work(*of, told)`."""
        self.processes.append(self.context.Process(target=work, args=(*of, self.told), daemon=True))
        self.processes[-1].start()

    def heard(self, *, but: SpawnProcess | None = None) -> Any:
        """What is told next. Raises RuntimeError when a process, `but` one, failed instead; TimeoutError."""
        others = [process for process in self.processes if process is not but]
        ends_s = time.monotonic() + self.wait_s
        while time.monotonic() < ends_s:
            with suppress(Empty):
                return self.told.get(timeout=1.0)
            refuse_failed(others)
        raise TimeoutError(f"nothing was told for {self.wait_s:g} s")

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.terminate()
            process.join()


def refuse_failed(processes: Sequence[SpawnProcess]) -> None:
    """Raises RuntimeError with the names of those that have failed."""
    if failed := [f"{one.name} (exit {one.exitcode})" for one in processes if one.exitcode]:
        raise RuntimeError(f"{', '.join(failed)} failed, see above")
