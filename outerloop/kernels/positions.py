"""Checks of kept positions, and helpers for the reference implementations of their codes (rice.py, elias_fano.py).

A row consists of the K kept positions of one chunk of L values. They are relative to the chunk and ascend strictly.
Streams and numbers start with their lowest bit.

The functions in rice.py and elias_fano.py run if no faster kernel is registered for the device. A decode operator takes
the bytes of P >= 1 peers for one tensor and returns (position_PM, good_P). good[p] is false for bytes that the encoder
never returns; the positions of peer p are then meaningless.

Sizes: M kept values in total, C chunks, L values per chunk, K of them kept, B bytes, P peers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outerloop.kernels.select import Rows


def gaps(position_M: Tensor, k: int) -> Tensor:
    """Return the number of positions skipped before each kept position, in rows of k: (M,) int64.

    The number is negative where a row does not ascend strictly.
    """
    before_M = position_M.long().roll(1)
    before_M[::k] = -1
    return position_M - before_M - 1


def are_valid(position_M: Tensor, rows: Rows) -> Tensor:
    """Return whether the positions of every row ascend strictly and stay inside their chunk, as a 0-d bool tensor."""
    whole_M, rest_M = position_M.split([rows.whole * rows.k, rows.kept_of_rest])
    return (gaps(position_M, rows.k) >= 0).all() & (whole_M < rows.chunk).all() & (rest_M < rows.rest).all()


def check_valid(good: Tensor | bool) -> None:
    """Raise ValueError if `good` is false, which means that an encoder received invalid positions."""
    if not good:
        raise ValueError("positions must ascend strictly inside their chunk")


def upto(count: int, like: Tensor) -> Tensor:
    """Return the integers 0 .. count - 1 as a tensor on the device of `like`."""
    return torch.arange(count, device=like.device)


def decode_each(decode: Callable[[Tensor], tuple[Tensor, Tensor]], bytes_P: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Call `decode` for the bytes of each of P peers. Return stacked positions (P, M) int32 and validity (P,) bool."""
    position, good = zip(*(decode(byte_B) for byte_B in bytes_P), strict=True)
    return torch.stack(position), torch.stack(good)


def no_positions(byte_B: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return zeros and False: the result for bytes that are rejected without decoding."""
    return byte_B.new_zeros(rows.kept, dtype=torch.int32), byte_B.new_zeros((), dtype=torch.bool)


def empty_decoded(bytes: list[Tensor], count: int, chunk: int, k: int) -> tuple[Tensor, Tensor]:
    """Return empty results of a decode operator, in the right shapes, for use in tracing."""
    peers, kept = len(bytes), Rows(count, chunk, k).kept
    return bytes[0].new_empty(peers, kept, dtype=torch.int32), bytes[0].new_empty(peers, dtype=torch.bool)
