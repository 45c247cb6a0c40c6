"""Compiled loops on several cores, as many as torch has threads: each takes a share of the rows, or whole tensors.

The loops release the GIL and every row's result depends on that row alone, so the number of threads changes nothing.
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
"""Values below which a second thread costs more than it saves."""


class Here(threading.local):
    """alone: in this thread a loop is not shared, because others work on tensors of their own."""

    alone = False


HERE = Here()


def share(loop: Callable[[int, int], None], rows: int, *, values: int) -> None:
    """Call loop(start, stop) so that 0 .. rows is covered once; `values` is how many values the rows hold."""
    threads = 1 if HERE.alone else min(torch.get_num_threads(), rows, max(1, values // GRAIN))
    if threads <= 1:
        return loop(0, rows)
    borders = [rows * i // threads for i in range(threads + 1)]
    others = [pool(threads).submit(loop, *ends) for ends in pairwise(borders[1:])]
    loop(0, borders[1])
    for future in others:
        future.result()
    return None


def share_all(loops: Sequence[Callable[[int, int], None]], rows: int, *, values: int) -> None:
    """`share` for loops of `rows` rows each, which hold `values` values each: every thread takes its share of all."""

    def part(first: int, stop: int) -> None:
        for i in range(first // rows, -(-stop // rows)):
            loops[i](max(first - i * rows, 0), min(stop - i * rows, rows))

    if rows:
        share(part, len(loops) * rows, values=len(loops) * values)


def across(work: Callable[[Item], Result], items: Sequence[Item], values: Sequence[int]) -> list[Result]:
    """work(item) of all, in their order. Each thread does whole items, which so stay in the cache of its core.

    values: how many each item has. Those that would keep one thread busy after the others come first, one by one, and
    their loops are shared. Raises what the first item that failed raised, once all are done.
    """
    threads = 1 if HERE.alone else torch.get_num_threads()
    if threads == 1:
        return [work(item) for item in items]
    results: dict[int, Result] = {}
    failed: dict[int, Exception] = {}
    order, grad = sorted(range(len(items)), key=lambda i: -values[i]), torch.is_grad_enabled()
    total = sum(values)
    large = sum(2 * threads * n > total for n in values)
    small = iter(order[large:])

    def do(i: int) -> None:
        try:
            results[i] = work(items[i])
        except Exception as error:
            failed[i] = error

    def some() -> None:
        HERE.alone = True
        try:
            with torch.set_grad_enabled(grad):
                for i in small:  # taking the next one is a step that the GIL lets no other thread into
                    do(i)
        finally:
            HERE.alone = False

    for i in order[:large]:
        do(i)
    others = [pool(threads).submit(some) for _ in range(min(threads - 1, total // GRAIN))]
    try:
        some()
    finally:  # nobody works on tensors behind the back of one who was interrupted
        for other in others:
            if not other.cancel():  # that has not even begun
                other.result()
    if failed:
        raise failed[min(failed)]
    return [results[i] for i in range(len(items))]


def keep_to(cores: int) -> None:
    """What this thread computes with, whatever others say: torch looks up the last that was said when it is asked."""
    torch.set_num_threads(cores)
    torch.get_num_threads()


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """The threads beside the caller's, kept for the life of the process."""
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="outerloop-kernel")
