"""Cyclic shared top-k (ScaleCom, arXiv 2104.11125): peers take turns choosing the positions that all peers keep.

    leader of round r + 1: peer (r + 1) mod P.  With its payload of round r it announces, from its residual,
    next = the k largest of |x − x̂| in each chunk;   in round r + 1, on every peer:  x̂ = values(x[next]), 0 elsewhere

In the paper, the leader chooses from its x of the same round and sends its choice before the others send. Here an
exchange is a single message, so the leader chooses one round ahead, from the residual that it carries into the next
round, before the Δ of that round is added. In the first round, and after a round that failed or had no announcement,
positions are drawn from the seed (random-k). The paper's low-pass filter of the residual belongs to the feedback axis.

All peers keep the same positions. So their parts can be added, unlike those of top-k, and the mean over P peers is as
sparse as one payload. Only the leader sends "next". This part must not be added: a network that computes the sum must
forward "next" in addition to the sum. "next" takes 12 bits per kept value at chunk 4096, but only one peer per round
sends it, so it costs 12 / P bits on average. Needs error feedback. Not suitable for peers with very different data,
because the leader's residual is then a poor estimate of theirs.

x is the tensor, x̂ the decoded tensor, and `values` the compressor of the kept values.
Sizes: N values, M kept values in total, P peers.
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
    """Compressor that keeps the positions that the previous round's leader announced, or else random positions.

    Args:
        chunk: values in a chunk, 2 .. 65536.
        k: number of values kept per chunk, 1 .. chunk; a shorter last chunk keeps the same share, rounded up.
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
        """Return the kept positions, (M,) int32: the announced ones, or random ones if none were announced.

        They ascend within each chunk. Raises ValueError if the announced positions are invalid.
        """
        if context.agreed is None:
            return super().positions(rows, context)
        return Fixed().decode([context.agreed], rows)[0]

    def check_agreed(self, agreed: Tensor, shape: Size) -> None:
        """Check that `agreed` contains valid packed positions for a tensor of this shape. Raises ValueError if not."""
        if agreed.dtype != torch.uint8 or agreed.dim() != 1:
            raise ValueError(f"positions are {agreed.dtype} of shape {tuple(agreed.shape)}, expected a uint8 vector")
        Fixed().decode([agreed], self.rows_of(shape.numel()))

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode the kept values of x (any shape). The leader adds "next", the positions for the next round."""
        parts = super().encode(x, context)
        if context.leads:
            parts["next"] = self.announced(x.detach() - self.decode(parts, x.shape, context))
        return parts

    def announced(self, held: Tensor) -> Tensor:
        """Return the positions of the largest magnitudes in each chunk of the residual `held`, packed to uint8."""
        rows = self.rows_of(held.numel())
        return Fixed().encode(topk_positions(held.reshape(-1), rows), rows)

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a dense float32 tensor of `shape`. Raises ValueError if `parts` are invalid.

        The part "next" is checked, too, so that invalid positions are rejected before the round that uses them.
        """
        if "next" in parts:
            if list(parts)[-1] != "next":
                raise ValueError(f"'next' must be the last part; the parts are {list(parts)}")
            self.check_agreed(parts["next"], shape)
        return super().decode({name: part for name, part in parts.items() if name != "next"}, shape, context)
