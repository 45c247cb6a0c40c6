"""Compiled loops on several cores: torch's number of threads, each a contiguous share of the rows.

The loops release the GIL and every row's result depends on that row alone, so the number of threads changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import torch

GRAIN = 1 << 16
"""Values below which a second thread costs more than it saves."""


def share(loop: Callable[[int, int], None], rows: int, *, values: int) -> None:
    """Call loop(start, stop) so that 0 .. rows is covered once; `values` is how many values the rows hold."""
    threads = min(torch.get_num_threads(), rows, max(1, values // GRAIN))
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


def keep_to(cores: int) -> None:
    """What this thread computes with, whatever others say: torch looks up the last that was said when it is asked."""
    torch.set_num_threads(cores)
    torch.get_num_threads()


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """The threads beside the caller's, kept for the life of the process."""
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="outerloop-kernel")
