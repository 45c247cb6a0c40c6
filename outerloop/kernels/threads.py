"""Run compiled loops on as many threads as torch uses, split by rows or by whole tensors.

The loops release the GIL. A row's result depends only on that row, so it is the same for any number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

GRAIN = 1 << 16
"""Minimum number of values per thread. For fewer values, starting another thread takes more time than it saves."""


class ThreadState(threading.local):
    """Thread-local state.

    exclusive: whether this thread must run its loops alone, because the other threads process other tensors.
    """

    exclusive = False


STATE = ThreadState()


def parallel_rows(loop: Callable[[int, int], None], rows: int, *, values: int) -> None:
    """Call loop(start, stop) on several threads, so that each of the rows 0 .. rows - 1 is processed once.

    values: total number of values across all rows, which limits the number of threads.
    """
    threads = 1 if STATE.exclusive else min(torch.get_num_threads(), rows, max(1, values // GRAIN))
    if threads <= 1:
        return loop(0, rows)
    borders = [rows * i // threads for i in range(threads + 1)]
    others = [pool(threads).submit(loop, *ends) for ends in pairwise(borders[1:])]
    loop(0, borders[1])
    for future in others:
        future.result()
    return None


def parallel_loops(loops: Sequence[Callable[[int, int], None]], rows: int, *, values: int) -> None:
    """Apply `parallel_rows` to the rows of several loops as if they were one loop.

    rows: number of rows per loop.
    values: total number of values per loop, across all rows.
    """

    def run_part(first: int, stop: int) -> None:
        for i in range(first // rows, -(-stop // rows)):
            loops[i](max(first - i * rows, 0), min(stop - i * rows, rows))

    if rows:
        parallel_rows(run_part, len(loops) * rows, values=len(loops) * values)


def parallel_map(work: Callable[[Item], Result], items: Sequence[Item], values: Sequence[int]) -> list[Result]:
    """Return work(item) for all items, in order. Each thread processes whole items, which stay in its core's cache.

    values: number of values in each item. Items so large that the other threads would have to wait for them are
    processed first, one after another, with the loops of each item split over all threads. If items fail, the error of
    the first failed item is raised after all items have been processed.
    """
    threads = 1 if STATE.exclusive else torch.get_num_threads()
    if threads == 1:
        return [work(item) for item in items]
    results: dict[int, Result] = {}
    failed: dict[int, Exception] = {}
    by_size, grad_enabled = sorted(range(len(items)), key=lambda i: -values[i]), torch.is_grad_enabled()
    total = sum(values)
    large = sum(2 * threads * n > total for n in values)
    small = iter(by_size[large:])

    def run_item(i: int) -> None:
        try:
            results[i] = work(items[i])
        except Exception as error:
            failed[i] = error

    def run_items() -> None:
        STATE.exclusive = True
        try:
            with torch.set_grad_enabled(grad_enabled):
                for i in small:  # taking the next item is atomic under the GIL
                    run_item(i)
        finally:
            STATE.exclusive = False

    for i in by_size[:large]:
        run_item(i)
    others = [pool(threads).submit(run_items) for _ in range(min(threads - 1, total // GRAIN))]
    try:
        run_items()
    finally:  # even after an interrupt, no other thread may continue to work on the tensors
        for other in others:
            if not other.cancel():  # a task that has started cannot be cancelled
                other.result()
    if failed:
        raise failed[min(failed)]
    return [results[i] for i in range(len(items))]


def set_threads(cores: int) -> None:
    """Fix the number of torch threads for the calling thread, whatever other threads set later.

    The number is also queried, because torch does not apply the setting until it is queried.
    """
    torch.set_num_threads(cores)
    torch.get_num_threads()


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool of `threads` - 1 threads that work in addition to the caller; it is kept until the process ends."""
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="outerloop-kernel")
