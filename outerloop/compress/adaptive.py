"""Top-k whose k each tensor chooses (after GraVAC, arXiv 2305.12201): the least that says enough.

    gain(k) = ‖kept(x, k)‖² / ‖x‖²;  k = the smallest of k_min, 2 k_min, 4 k_min, …, k_max with gain(k) >= target

A tensor whose energy sits in few values sends few, one whose energy is spread sends up to k_max and leaves the rest to
the feedback. GraVAC moves one factor for the whole model over the steps, by gain and throughput; here every tensor of
every round chooses anew, without state, inside the budget that k_max is. The gain is that of the exact kept values.

C chunks, L chunk length, K kept per chunk.
"""

from __future__ import annotations

import torch
from torch import Size, Tensor

from outerloop.compress.index import Index
from outerloop.compress.topk import TopK
from outerloop.kernels.rows import Rows, split_rows
from outerloop.protocols import Compressor
from outerloop.types import Moment, Parts, UserError


class Adaptive:
    """`TopK` with one of a few k, told in one byte a tensor.

    Args:
        chunk: values in a chunk, 2 .. 65536.
        k_min: the least kept per chunk.
        k_max: the most kept per chunk, 1 .. chunk: the budget.
        target: share of the squared length of x to send, 0 .. 1.
        values: compressor of the kept values; it sees them in order, in groups of what one chunk kept.
        index: code of the kept positions.

    Raises:
        UserError: if a setting is out of range.
    """

    linear = False

    def __init__(self, *, chunk: int, k_min: int, k_max: int, target: float, values: Compressor, index: Index) -> None:
        if not 1 <= k_min <= k_max:
            raise UserError(f"adaptive k_min={k_min} must be 1 .. k_max={k_max}")
        if not 0 <= target <= 1:
            raise UserError(f"adaptive target={target} must be 0 .. 1")
        self.target = target
        steps = [k_min << i for i in range((k_max // k_min).bit_length()) if k_min << i < k_max]
        self.ladder = [TopK(chunk=chunk, k=k, values=values, index=index) for k in [*steps, k_max]]

    def encode(self, x: Tensor, moment: Moment) -> Parts:
        """(N values, any shape) -> "step" (1,) uint8, the place of k on the ladder, and the parts of TopK."""
        step = self.step(x.detach().reshape(-1))
        return {"step": x.new_tensor([step], dtype=torch.uint8)} | self.ladder[step].encode(x, moment)

    def decode(self, parts: Parts, shape: Size, moment: Moment) -> Tensor:
        """Parts -> dense float32 of `shape`. Raises ValueError on a step that is not on the ladder, or as TopK does."""
        step = parts["step"]
        if step.shape != (1,) or step.dtype != torch.uint8 or int(step) >= len(self.ladder):
            raise ValueError(f"step {tuple(step.shape)} {step.dtype} is not one uint8 of 0 .. {len(self.ladder) - 1}")
        return self.ladder[int(step)].decode({n: p for n, p in parts.items() if n != "step"}, shape, moment)

    def step(self, x_N: Tensor) -> int:
        """The first of the ladder that reaches the target, or the last. Squares in float64: none overflows."""
        whole, last = float(x_N.double().square().sum()), self.ladder[-1]
        tops = [
            (row_CL.shape[1], row_CL.abs().topk(kept(row_CL.shape[1], last)).values.double().square())
            for row_CL in split_rows(x_N, last.chunk)
        ]
        for step, codec in enumerate(self.ladder[:-1]):
            if sum(float(top_CK[:, : kept(length, codec)].sum()) for length, top_CK in tops) >= self.target * whole:
                return step
        return len(self.ladder) - 1


def kept(length: int, topk: TopK) -> int:
    """How many values a chunk of this length keeps, warm-up apart."""
    return Rows(length, topk.chunk, topk.k).kept
