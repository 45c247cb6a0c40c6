"""The launch pass: slow, fast and residual in, the kept positions and values of every chunk out; nothing dense written.

    x = (slow − fast) + residual · β;    kept = the k largest of |x| in each chunk, ties to the lowest position

The residual is float32, or int8 with scales as `eight_bit` defines them; then a chunk that another one follows is a
multiple of its blocks.

The functions here are the definition, in plain torch; `cpu_select` is the same pass in one sweep.
N values, C chunks, L chunk length, K kept per chunk, M kept in all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outerloop.kernels.eight_bit import read_residual
from outerloop.kernels.operator import operator
from outerloop.kernels.reference import topk_rows
from outerloop.kernels.rows import Rows


def offer(slow: Tensor, fast: Tensor | None, residual: Tensor | None, beta: float) -> Tensor:
    """(slow − fast) + residual · β in float32, each product and sum rounded; what is None is left out."""
    x = slow if fast is None else slow - fast.float()
    return x if residual is None else x + residual * beta


@operator()
def select(
    slow: Tensor, fast: Tensor | None, residual: Tensor | None, scale: Tensor | None, beta: float, chunk: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Position in its chunk and value of what is kept, and the sum of (slow − fast)².

    All inputs have N values, contiguous: slow and residual float32, fast float32 or bfloat16. With `scale` the residual
    is codes: (B, 256) int8 and (B, 1) float32. Returns (M,) int32 ascending inside each chunk, (M,) float32, and (1,)
    float64. A NaN or infinity in a chunk is always kept.
    """
    rows = Rows(slow.numel(), chunk, k)
    held = None if residual is None else read_residual(residual, scale, slow.shape)
    x_N = offer(slow, fast, held, beta).view(-1)
    picked = [topk_rows(x_CL, kept) for x_CL, kept in split(x_N, rows)]
    value = [x_CL.gather(1, at).view(-1) for (x_CL, _), at in zip(split(x_N, rows), picked, strict=True)]
    position_M = torch.cat([at.view(-1).int() for at in picked] or [x_N.new_zeros(0, dtype=torch.int32)])
    return (
        position_M,
        torch.cat([*value, x_N.new_zeros(0)]),
        offer(slow, fast, None, 0.0).double().square().sum().view(1),
    )


@select.fake
def _(
    slow: Tensor, fast: Tensor | None, residual: Tensor | None, scale: Tensor | None, beta: float, chunk: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    kept = Rows(slow.numel(), chunk, k).kept
    return slow.new_empty(kept, dtype=torch.int32), slow.new_empty(kept), slow.new_empty(1, dtype=torch.float64)


def split(x_N: Tensor, rows: Rows) -> list[tuple[Tensor, int]]:
    """The whole chunks (C, L) and the ragged last one (1, rest), each with what a row of it keeps."""
    whole_N, rest_N = x_N.split([rows.whole * rows.chunk, rows.rest])
    both = [(whole_N.view(-1, rows.chunk), rows.k), (rest_N.view(1, -1), rows.kept_of_rest)]
    return [(x_CL, kept) for x_CL, kept in both if x_CL.numel()]


def absolute(position_M: Tensor, rows: Rows) -> Tensor:
    """Positions in their chunks -> (M,) int64 positions in the tensor."""
    row_M = (torch.arange(rows.kept, device=position_M.device) // rows.k).clamp(max=max(0, rows.rows - 1))
    return position_M.long() + row_M * rows.chunk
