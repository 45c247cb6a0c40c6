"""Chunks and groups: consecutive values that are selected among, or share a scale. The last one may be shorter.

N values, C chunks, G groups.
"""

from __future__ import annotations

from torch import Tensor

from outerloop.types import Moment, UserError


def checked_chunk(name: str, chunk: int | None) -> int | None:
    """A codec's `chunk` setting. Raises UserError when it is not positive."""
    if chunk is not None and chunk < 1:
        raise UserError(f"{name} chunk={chunk} must be at least 1, or null inside a sparse codec")
    return chunk


def group_length(chunk: int | None, count: int, moment: Moment) -> int:
    """Values in a group: as set, as the outer codec says, or all of them."""
    return chunk or moment.group or max(1, count)


def split_rows(flat_N: Tensor, length: int) -> list[Tensor]:
    """(N,) -> the full rows (C, length) and, if there is a rest, the ragged last row (1, rest). Views, no padding."""
    whole = flat_N.numel() // length * length
    rows = [flat_N[:whole].view(-1, length), flat_N[whole:].view(1, -1)]
    return [row for row in rows if row.numel()]


def split_rows_of_levels(level_G2: Tensor, count: int, length: int) -> list[Tensor]:
    """The levels that belong to each item of `split_rows`."""
    whole = count // length
    return [level for level in (level_G2[:whole], level_G2[whole:]) if level.numel()]
