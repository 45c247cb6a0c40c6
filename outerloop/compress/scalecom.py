"""Cyclic shared top-k (ScaleCom, arXiv 2104.11125): everyone sends the positions that one leader, in turns, has chosen.

    leader of round r + 1: peer (r + 1) mod P.  With its payload of round r it announces, of what that payload left out,
    next = the k largest of |x − x̂| in each chunk;   in round r + 1, on every peer:  x̂ = values(x[next]), 0 elsewhere

The paper's leader picks from its x of the same round and tells the others before they send; here an exchange is one
shot, so it picks a round ahead, from the residual with which it enters that round, before its newest Δ is added. In the
first round, and after one that failed or brought no announcement, positions are drawn from the seed: random-k.
The low-pass filter that the paper puts on the memory belongs to the axis feedback.

All peers keep the same positions, so parts add up, unlike those of top-k, and a mean of P peers is as sparse as one.
"next" is the leader's alone: it is not added, and who sums inside a network passes it on beside the sum. That costs
less than zeros from the other P − 1 peers would: 12 bits a kept value at chunk 4096 from one peer a round, 12 / P on
average. Needs error feedback. Not for peers with very different data: what the leader holds back says little of them.

N values, M kept in all, P peers.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Size, Tensor

from outerloop.compress.index.fixed import Fixed
from outerloop.compress.randomk import RandomK
from outerloop.kernels.rows import Rows
from outerloop.kernels.select import topk_positions
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError


class ScaleCom(RandomK):
    """Random-k at positions that are no longer random once a leader's announcement has landed.

    Args:
        chunk: values in a chunk, 2 .. 65536.
        k: kept per chunk, 1 .. chunk; the ragged last chunk keeps the same share, rounded up.
        values: compressor of the kept values; it sees them in order, in groups of what one chunk kept.

    Raises:
        UserError: if `chunk` or `k` is out of range.
    """

    def __init__(self, *, chunk: int, k: int, values: Compressor) -> None:
        if not 2 <= chunk <= 65536:
            raise UserError(f"scalecom chunk={chunk} must be 2 .. 65536 (4096 is usual)")
        if not 1 <= k <= chunk:
            raise UserError(f"scalecom k={k} must be 1 .. chunk={chunk}")
        super().__init__(chunk=chunk, k=k, values=values)

    def positions(self, rows: Rows, moment: CodecContext) -> Tensor:
        """(M,) int32, ascending inside their chunks: as agreed, or drawn.

        Raises ValueError when what was agreed are not ascending positions, as many as these rows keep.
        """
        if moment.agreed is None:
            return super().positions(rows, moment)
        return Fixed().decode([moment.agreed], rows)[0]

    def encode(self, x: Tensor, moment: CodecContext) -> Parts:
        """(N values, any shape) -> the parts of the kept values (M,), a leader's with "next": see `announced`."""
        parts = super().encode(x, moment)
        if moment.leads:
            parts["next"] = self.announced(x.detach() - self.decode(parts, x.shape, moment))
        return parts

    def announced(self, held: Tensor) -> Tensor:
        """What was not sent (N values, any shape) -> where it is largest: M positions in their chunks, packed uint8."""
        rows = self.rows_of(held.numel())
        return Fixed().encode(topk_positions(held.reshape(-1), rows), rows)

    def decode(self, parts: Parts, shape: Size, moment: CodecContext) -> Tensor:
        """Parts -> dense float32 of `shape`. Raises ValueError when `values` cannot decode them.

        A bad "next" is a ValueError now, in the round that brings it: in the next one it would be too late.
        """
        if "next" in parts:
            self.positions(self.rows_of(shape.numel()), replace(moment, agreed=parts["next"]))
        return super().decode({name: part for name, part in parts.items() if name != "next"}, shape, moment)
