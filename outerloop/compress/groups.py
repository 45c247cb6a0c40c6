"""Groups: consecutive values that share a scale. The last one may be shorter."""

from __future__ import annotations

from outerloop.types import Moment, UserError


def checked_chunk(name: str, chunk: int | None) -> int | None:
    """A codec's `chunk` setting. Raises UserError when it is not positive."""
    if chunk is not None and chunk < 1:
        raise UserError(f"{name} chunk={chunk} must be at least 1, or null inside a sparse codec")
    return chunk


def group_length(chunk: int | None, count: int, moment: Moment) -> int:
    """Values in a group: as set, as the outer codec says, or all of them."""
    return chunk or moment.group or max(1, count)
