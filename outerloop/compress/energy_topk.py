"""Top-k whose k each tensor chooses (after GraVAC, arXiv 2305.12201): the least that says enough.

    gain(k) = ‖kept(x, k)‖² / ‖x‖²;  k = the smallest of k_min, 2 k_min, 4 k_min, …, k_max with gain(k) >= target

A tensor whose energy sits in few values sends few, one whose energy is spread sends up to k_max and leaves the rest to
the feedback. GraVAC moves one factor for the whole model over the steps, by gain and throughput; here every tensor of
every round chooses anew, without state, inside the budget that k_max is. The gain is that of the exact kept values.

C chunks, L chunk length, K kept per chunk.
"""

from __future__ import annotations

from torch import Tensor

from outerloop.compress.index import Index
from outerloop.compress.multi_k import Ladder
from outerloop.compress.topk import TopK
from outerloop.kernels.rows import Rows, split_rows
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError


class Adaptive(Ladder):
    """`TopK` with the least k that says enough of the tensor at hand.

    Args:
        chunk, values, index: as for TopK.
        k_min: the least kept per chunk.
        k_max: the most kept per chunk, 1 .. chunk: the budget.
        target: share of the squared length of x to send, 0 .. 1.

    Raises:
        UserError: if a setting is out of range.
    """

    def __init__(self, *, chunk: int, k_min: int, k_max: int, target: float, values: Compressor, index: Index) -> None:
        if not 0 <= target <= 1:
            raise UserError(f"adaptive target={target} must be 0 .. 1")
        super().__init__(chunk=chunk, k_min=k_min, k_max=k_max, values=values, index=index)
        self.target = target

    def encode(self, x: Tensor, moment: CodecContext) -> Parts:
        """(N values, any shape) -> the parts of Ladder."""
        return self.encode_at(self.step(x.detach().reshape(-1)), x, moment)

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
