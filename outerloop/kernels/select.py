"""The launch pass: compute the kept positions and values of every chunk, without dense output.

    x = (slow − fast) + residual · β;    kept = the k largest of |x| in each chunk, ties to the lowest position

The residual is float32, or int8 with scales as defined in `eight_bit`; then every chunk but the last is a multiple of
its blocks.

The functions in this file are the definition, in plain torch; `cpu/select.py` is the same pass in one sweep.
N values, C chunks, L chunk length, K kept per chunk, M kept in all.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from outerloop.kernels.eight_bit import read_residual
from outerloop.kernels.operator import operator
from outerloop.kernels.reference import topk_rows
from outerloop.kernels.rows import Rows, split_rows


def offer(slow: Tensor, fast: Tensor | None, residual: Tensor | None, beta: float) -> Tensor:
    """Return (slow − fast) + residual · β in float32, each product and sum rounded; None terms are left out."""
    x = slow if fast is None else slow - fast.float()
    return x if residual is None else x + residual * beta


@operator()
def select(
    slow: Tensor, fast: Tensor | None, residual: Tensor | None, scale: Tensor | None, beta: float, chunk: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Select the kept values. Return their positions in their chunks, the values, and the sum of (slow − fast)².

    All inputs have N values, contiguous: slow and residual float32, fast float32 or bfloat16. With `scale` the residual
    is codes: (B, 256) int8 and (B, 1) float32. Returns (M,) int32 ascending inside each chunk, (M,) float32, and (1,)
    float64. If a chunk contains NaN or infinity, at least one is kept.
    """
    rows = Rows(slow.numel(), chunk, k)
    residual_N = None if residual is None else read_residual(residual, scale, slow.shape)
    x_N = offer(slow, fast, residual_N, beta).view(-1)
    position_M = topk_positions(x_N, rows)
    return position_M, x_N[absolute(position_M, rows)], offer(slow, fast, None, 0.0).double().square().sum().view(1)


@select.fake
def _(
    slow: Tensor, fast: Tensor | None, residual: Tensor | None, scale: Tensor | None, beta: float, chunk: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    kept = Rows(slow.numel(), chunk, k).kept
    return slow.new_empty(kept, dtype=torch.int32), slow.new_empty(kept), slow.new_empty(1, dtype=torch.float64)


def topk_positions(x_N: Tensor, rows: Rows) -> Tensor:
    """Return the positions of the largest magnitudes of every chunk, by `rows`: (M,) int32, ascending in a chunk."""
    picked = [topk_rows(x_CL, replace(rows, count=x_CL.shape[1]).kept) for x_CL in split_rows(x_N, rows.chunk)]
    return torch.cat([x_N.new_zeros(0, dtype=torch.int32), *(index_CK.view(-1).int() for index_CK in picked)])


def absolute(position_M: Tensor, rows: Rows) -> Tensor:
    """Convert positions in chunks to (M,) int64 positions in the tensor."""
    row_M = (torch.arange(rows.kept, device=position_M.device) // rows.k).clamp(max=max(0, rows.chunks - 1))
    return position_M.long() + row_M * rows.chunk
