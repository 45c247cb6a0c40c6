"""Cyclic shared top-k (ScaleCom, arXiv 2104.11125): leaders take turns to choose all peers' positions.

    leader of round r + 1: peer (r + 1) mod P.  With its payload of round r it announces, from its residual,
    next = the k largest of |x − x̂| in each chunk;   in round r + 1, on every peer:  x̂ = values(x[next]), 0 elsewhere

In the paper, the leader chooses from its x of the same round and sends its choice before the others send. Here an
exchange is a single message, so the leader chooses one round ahead: from the residual with which it enters that round,
before its newest Δ is added. In the first round, and after a round that failed or had no announcement, positions are
drawn from the seed (random-k). The paper's low-pass filter on the memory belongs to the axis feedback.

All peers keep the same positions. So parts can be added, unlike those of top-k, and a mean of P peers is as sparse as
one payload. Only the leader sends "next". It is not added: a sum inside the network must forward it next to the sum.
That costs less than zeros from the other P − 1 peers: 12 bits per kept value at chunk 4096 from one peer per round,
12 / P on average. Needs error feedback. Not for peers with very different data: the leader's residual says little
about theirs.

N values, M kept in all, P peers.
"""

from __future__ import annotations

import torch
from torch import Size, Tensor

from outerloop.compress.index.fixed import Fixed
from outerloop.compress.randomk import RandomK
from outerloop.kernels.select import Rows, topk_positions
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError


class ScaleCom(RandomK):
    """Random-k that uses the positions announced by the leader once an announcement has landed.

    Args:
        chunk: values in a chunk, 2 .. 65536.
        k: kept per chunk, 1 .. chunk; the ragged last chunk keeps the same share, rounded up.
        values: compressor of the kept values. It receives them in order, one group per chunk.

    Raises:
        UserError: if `chunk` or `k` is out of range.
    """

    def __init__(self, *, chunk: int, k: int, values: Compressor) -> None:
        if not 2 <= chunk <= 65536:
            raise UserError(f"scalecom chunk={chunk} must be 2 .. 65536 (4096 is usual)")
        if not 1 <= k <= chunk:
            raise UserError(f"scalecom k={k} must be 1 .. chunk={chunk}")
        super().__init__(chunk=chunk, k=k, values=values)

    def positions(self, rows: Rows, context: CodecContext) -> Tensor:
        """Return (M,) int32, ascending inside their chunks: as agreed, or drawn.

        Raises ValueError unless the agreed positions ascend and are as many as these rows keep.
        """
        if context.agreed is None:
            return super().positions(rows, context)
        return Fixed().decode([context.agreed], rows)[0]

    def check_agreed(self, agreed: Tensor, shape: Size) -> None:
        """Check that these are packed positions for a tensor of this shape. Raises ValueError."""
        if agreed.dtype != torch.uint8 or agreed.dim() != 1:
            raise ValueError(f"positions are {agreed.dtype} {tuple(agreed.shape)}, expected one row of uint8")
        Fixed().decode([agreed], self.rows_of(shape.numel()))

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode (N values, any shape) to the parts of kept values (M,); the leader adds "next": see `announced`."""
        parts = super().encode(x, context)
        if context.leads:
            parts["next"] = self.announced(x.detach() - self.decode(parts, x.shape, context))
        return parts

    def announced(self, held: Tensor) -> Tensor:
        """Return where the residual (N values, any shape) is largest: M positions in their chunks, packed uint8."""
        rows = self.rows_of(held.numel())
        return Fixed().encode(topk_positions(held.reshape(-1), rows), rows)

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to dense float32 of `shape`. Raises ValueError if `values` cannot decode them.

        An invalid "next" raises ValueError in the round that brings it: in the next round it would be too late.
        """
        if "next" in parts:
            self.check_agreed(parts["next"], shape)
        return super().decode({name: part for name, part in parts.items() if name != "next"}, shape, context)
