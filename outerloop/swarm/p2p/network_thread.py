"""The network thread, which runs one asyncio loop. All network calls of the training thread go through it.

`BackgroundTasks` keeps references to tasks that no other code awaits. Such tasks must handle their own errors.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from outerloop.swarm.resource_exhaustion import EXHAUSTION

T = TypeVar("T")


class BackgroundTasks:
    """Holds references to an owner's running tasks, because asyncio may garbage-collect a task without references.

    Unlike in an asyncio.TaskGroup, a failing task does not end the others, and the owner need not wait for the tasks.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that runs `work`, and return the task."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def __len__(self) -> int:
        """Return the number of running tasks."""
        return len(self._running)

    @property
    def running(self) -> bool:
        """Return whether any task is running."""
        return bool(self._running)

    async def finished(self) -> None:
        """Wait until all tasks that are running now have ended."""
        await asyncio.gather(*self._running, return_exceptions=True)

    def cancel(self) -> None:
        """Cancel all running tasks."""
        for task in list(self._running):
            task.cancel()


class NetworkThread:
    """A background thread that runs coroutines. `spawn` returns at once; `call` waits for the result."""

    def __init__(self, name: str) -> None:
        self._loop, self._executor = asyncio.new_event_loop(), ThreadPoolExecutor(thread_name_prefix=name)
        self._loop.set_default_executor(self._executor)
        self._loop.set_exception_handler(EXHAUSTION.quiet)
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Run `work` in the network thread, block until it is done, and return its result.

        After `timeout_s`, cancels the work and raises TimeoutError.
        """
        future = self.spawn(work)
        try:
            return future.result(timeout_s)
        except BaseException:  # timeout, or Ctrl-C while waiting: the result is no longer needed
            future.cancel()
            raise

    def stop(self, *, timeout_s: float) -> None:
        """Cancel the running tasks, stop the loop and end the thread.

        Work that tasks have given to other threads, such as hashing, cannot be canceled. It has `timeout_s` to end.
        """
        self.call(_cancel_all(), timeout_s=timeout_s)
        ending = threading.Thread(target=self._executor.shutdown, daemon=True)
        ending.start()
        ending.join(timeout_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)
        self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
