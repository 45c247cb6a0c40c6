"""An asyncio loop whose time jumps to the next timer as soon as nothing is ready: 30 s of waiting cost no real time.

Only for code without sockets: nothing from outside is waited for, and what would go to a thread is done at once.
Everything that happens is a function of the code and its seeds, so a failing run fails again.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.DefaultSelector):  # a class chosen at run time
    """A selector that, where others would sleep, moves the clock."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "without the limit of `run` there may be nothing left to wait for"
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0. Errors that no task took are kept in `errors`."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self.errors: list[BaseException] = []
        self.set_exception_handler(self._keep)

    def time(self) -> float:
        return self._jump.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        done = self.create_future()
        done.set_result(func(*args))
        return done

    def _keep(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or RuntimeError(context["message"]))


def run(work: Coroutine[Any, Any, T], *, limit_s: float = 3600) -> T:
    """The result of `work` after at most `limit_s` of virtual time. Raises what any task left unhandled."""
    loop = VirtualLoop()
    try:
        result = loop.run_until_complete(asyncio.wait_for(work, limit_s))
    finally:
        loop.run_until_complete(_cancel_the_rest())
        loop.close()
    if loop.errors:
        raise loop.errors[0]
    return result


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test on a virtual clock of its own."""

    @functools.wraps(test)
    def on_virtual_clock(*args: Any, **kwargs: Any) -> None:
        run(test(*args, **kwargs))

    return on_virtual_clock


async def _cancel_the_rest() -> None:
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # some begin others on their way out
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def now_s() -> float:
    """Seconds of virtual time since the loop began."""
    return asyncio.get_running_loop().time()
