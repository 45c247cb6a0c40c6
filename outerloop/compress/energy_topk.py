"""Top-k with the smallest k per tensor that keeps enough energy (squared norm); based on GraVAC (arXiv 2305.12201).

    gain(k) = ‖kept(x, k)‖² / ‖x‖²;  k = the smallest of k_min, 2 k_min, 4 k_min, …, k_max with gain(k) >= target

If the energy of a tensor is concentrated in a few values, few values are sent. If it is spread out, up to k_max values
per chunk are sent, and error feedback retains the rest. GraVAC adapts one compression factor for the whole model during
training, based on gain and throughput. Here k is chosen separately for every tensor in every round, without state.
The gain is computed from the kept values before they are quantized.

Sizes: C chunks, L values per chunk, K of them kept.
"""

from __future__ import annotations

from torch import Tensor

from outerloop.compress.index import Index
from outerloop.compress.multi_k import MultiKTopK
from outerloop.compress.topk import TopK
from outerloop.kernels.select import Rows, split_rows
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError


class EnergyTopK(MultiKTopK):
    """`TopK` with the smallest k that keeps the target share of each tensor's energy.

    Args:
        chunk, values, index: as for TopK.
        k_min: smallest number of values kept per chunk.
        k_max: largest number of values kept per chunk, 1 .. chunk.
        target: share of the squared norm of x that the kept values must contain, 0 .. 1.

    Raises:
        UserError: if a setting is out of range.
    """

    def __init__(self, *, chunk: int, k_min: int, k_max: int, target: float, values: Compressor, index: Index) -> None:
        if not 0 <= target <= 1:
            raise UserError(f"adaptive target={target} must be 0 .. 1")
        super().__init__(chunk=chunk, k_min=k_min, k_max=k_max, values=values, index=index)
        self.target = target

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (any shape) with the smallest k that reaches the target. The parts are those of `MultiKTopK`."""
        return self.encode_at(self.rung(x.detach().reshape(-1)), x, context)

    def rung(self, x_N: Tensor) -> int:
        """Return the index of the smallest k that keeps enough energy, or of the largest k if none does.

        Squares are computed in float64, where they do not overflow.
        """
        whole, last = float(x_N.double().square().sum()), self.ladder[-1]
        tops = [
            (row_CL.shape[1], row_CL.abs().topk(kept(row_CL.shape[1], last)).values.double().square())
            for row_CL in split_rows(x_N, last.chunk)
        ]
        for rung, codec in enumerate(self.ladder[:-1]):
            if sum(float(top_CK[:, : kept(length, codec)].sum()) for length, top_CK in tops) >= self.target * whole:
                return rung
        return len(self.ladder) - 1


def kept(length: int, topk: TopK) -> int:
    """Return how many values `topk` keeps in a chunk of this length after warm-up."""
    return Rows(length, topk.chunk, topk.k).kept
