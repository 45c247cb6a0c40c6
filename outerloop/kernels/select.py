"""The launch pass: compute the kept positions and values of every chunk, without dense output.

    x = (slow − fast) + residual · β;    kept = the k largest of |x| in each chunk, ties to the lowest position

β is the decay of the residual. If signs are given, x is rotated before the selection (rotation.py).

The residual is float32, or int8 with scales as defined in `eight_bit`. With int8, the length of every chunk but the
last is a multiple of the block length.

The functions in this file are the reference implementation, in plain torch; `cpu/select.py` does the same in one sweep.
Sizes: N values, C chunks, L values per chunk, K of them kept, M kept values in total.

A tensor is cut into chunks in memory order; the last chunk may be shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outerloop.kernels.eight_bit import read_residual
from outerloop.kernels.operator import operator
from outerloop.kernels.reference import topk_rows
from outerloop.kernels.rotation import rotate


@dataclass(frozen=True)
class Rows:
    """The division of `count` values into chunks, with `k` values kept per chunk.

    A shorter last chunk keeps the same share of its values, rounded up. The kept values of all chunks are concatenated;
    those of chunk r start at index r * k.
    """

    count: int
    chunk: int
    k: int

    @property
    def whole(self) -> int:
        """Number of full chunks."""
        return self.count // self.chunk

    @property
    def rest(self) -> int:
        """Length of the last chunk if it is shorter than the others, else 0."""
        return self.count % self.chunk

    @property
    def chunks(self) -> int:
        """Total number of chunks, including a shorter last chunk."""
        return -(-self.count // self.chunk)

    @property
    def kept_of_rest(self) -> int:
        """Number of values kept from the shorter last chunk: k / chunk of its length, rounded up."""
        return -(-self.k * self.rest // self.chunk)

    @property
    def kept(self) -> int:
        """Total number of values kept, across all chunks."""
        return self.whole * self.k + self.kept_of_rest


def split_rows(x_N: Tensor, length: int) -> list[Tensor]:
    """Split x (N,) into views: the full rows (C, length), and the shorter last row (1, rest). Omit an empty view."""
    whole = x_N.numel() // length * length
    rows = [x_N[:whole].view(-1, length), x_N[whole:].view(1, -1)]
    return [row for row in rows if row.numel()]


def encode_rows(x_N: Tensor, length: int, encode: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Encode the rows of x, of `length` values each; the last may be shorter. Return codes (N,) and levels (G, ...).

    encode: maps C rows of L values, (C, L), to their codes, (C, L), and the levels of each row, (C, ...).
    """
    coded = [encode(row_CL) for row_CL in split_rows(x_N, length) or [x_N.view(0, length)]]
    return torch.cat([code.view(-1) for code, _ in coded]), torch.cat([level for _, level in coded])


def decode_rows(code_N: Tensor, level_G: Tensor, length: int, decode: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Decode the codes of rows of `length` values, the last of which may be shorter. Return (N,) float32.

    level_G: the levels of each row, (G, ...).
    decode: maps the codes of C rows of L values, (C, L), and their levels, (C, ...), to values, (C, L) float32.
    """
    whole = len(code_N) // length
    levels = [level for level in (level_G[:whole], level_G[whole:]) if level.numel()]
    rows = [decode(code_CL, level).view(-1) for code_CL, level in zip(split_rows(code_N, length), levels, strict=True)]
    return torch.cat(rows or [level_G.new_zeros(0, dtype=torch.float32)])


def offer(slow: Tensor, fast: Tensor | None, residual: Tensor | None, beta: float) -> Tensor:
    """Return (slow − fast) + residual · β in float32; terms that are None are omitted.

    Each product and each sum is rounded separately.
    """
    x = slow if fast is None else slow - fast.float()
    return x if residual is None else x + residual * beta


class Selection(NamedTuple):
    """Scalar parameters of the operator `select`.

    beta: decay of the residual.
    chunk, k: `k` of every `chunk` values are kept; see `Rows`.
    """

    beta: float
    chunk: int
    k: int


@operator()
def select(
    slow: Tensor,
    fast: Tensor | None,
    residual: Tensor | None,
    scale: Tensor | None,
    negative: Tensor | None,
    how: Selection,
) -> tuple[Tensor, Tensor, Tensor]:
    """Select the values of x = (slow − fast) + residual · beta to keep: the k largest magnitudes of each chunk.

    Returns the M kept positions relative to their chunks, (M,) int32, ascending inside each chunk; the kept values,
    (M,) float32; and Σ (slow − fast)², (1,) float64. If a chunk contains NaN or infinity, at least one such value is
    kept.

    slow, residual: N float32 values, contiguous.
    fast: N float32 or bfloat16 values, contiguous.
    scale: None, or (B, 1) float32 scales for B blocks; the residual then consists of (B, 256) int8 codes.
    negative: sign bits of the rotation of x (rotation.py), or None if x is not rotated.
    """
    rows = Rows(slow.numel(), how.chunk, how.k)
    residual_N = None if residual is None else read_residual(residual, scale, slow.shape)
    x_N = offer(slow, fast, residual_N, how.beta).view(-1)
    if negative is not None:
        x_N = rotate(x_N, negative, how.chunk, False)
    position_M = topk_positions(x_N, rows)
    return position_M, x_N[absolute(position_M, rows)], offer(slow, fast, None, 0.0).double().square().sum().view(1)


@select.fake
def _(slow: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, chunk, k = rest
    kept = Rows(slow.numel(), chunk, k).kept
    return slow.new_empty(kept, dtype=torch.int32), slow.new_empty(kept), slow.new_empty(1, dtype=torch.float64)


def topk_positions(x_N: Tensor, rows: Rows) -> Tensor:
    """Return the positions of the largest magnitudes of each chunk, relative to the chunk and ascending: (M,) int32."""
    picked = [topk_rows(x_CL, replace(rows, count=x_CL.shape[1]).kept) for x_CL in split_rows(x_N, rows.chunk)]
    return torch.cat([x_N.new_zeros(0, dtype=torch.int32), *(index_CK.view(-1).int() for index_CK in picked)])


def absolute(position_M: Tensor, rows: Rows) -> Tensor:
    """Convert positions relative to their chunks to positions in the whole tensor, (M,) int64."""
    row_M = (torch.arange(rows.kept, device=position_M.device) // rows.k).clamp(max=max(0, rows.chunks - 1))
    return position_M.long() + row_M * rows.chunk
