"""Background tasks of one owner: work that is not awaited and handles its own failures."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """The running tasks of one owner. It keeps references to them, because asyncio may drop a task without any.

    Unlike in an asyncio.TaskGroup, a task that fails ends no other, and nothing has to wait for all of them.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task, and return it."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        """Cancel all running tasks."""
        for task in list(self._running):
            task.cancel()
