"""Compiled loops on several cores: torch's number of threads, each a contiguous share of the rows.

The loops release the GIL and every row's result depends on that row alone, so the number of threads changes nothing.
What is shared out inside of a share stays on its thread: they are all busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from threading import local
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

GRAIN = 1 << 16
"""Values below which a second thread costs more than it saves."""
HERE = local()
"""`HERE.busy`: this thread is inside of a share."""


def share(loop: Callable[[int, int], None], rows: int, *, values: int) -> None:
    """Call loop(start, stop) so that 0 .. rows is covered once; `values` is how many values the rows hold."""
    threads = 1 if getattr(HERE, "busy", False) else min(torch.get_num_threads(), rows, max(1, values // GRAIN))
    if threads <= 1:
        return loop(0, rows)

    def part(first: int, stop: int) -> None:
        with busy():
            loop(first, stop)

    borders = [rows * i // threads for i in range(threads + 1)]
    others = [pool(threads).submit(part, *ends) for ends in pairwise(borders[1:])]
    try:
        part(0, borders[1])
    finally:
        errors = [future.exception() for future in others]  # waits: the loops write into the caller's arrays
    for error in filter(None, errors):
        raise error
    return None


def each(work: Callable[[T], R], items: Sequence[T], *, values: int) -> list[R]:
    """[work(x) for x in items], which hold so many values in all. The first error in the order of items is raised."""
    done: dict[int, R] = {}

    def part(first: int, stop: int) -> None:
        for i in range(first, stop):
            done[i] = work(items[i])

    share(part, len(items), values=values)
    return [done[i] for i in range(len(items))]


@contextmanager
def busy() -> Iterator[None]:
    """This thread is inside of a share for as long as this lasts."""
    HERE.busy = True
    try:
        yield
    finally:
        HERE.busy = False


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """The threads beside the caller's, kept for the life of the process."""
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="outerloop-kernel")
