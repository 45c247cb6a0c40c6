"""Random-k: keep k of every `chunk` consecutive values, at positions drawn from a shared seed (arXiv 1809.07599).

    kept = k uniformly random positions in each chunk, without replacement;  x̂ = values(x[kept]), 0 elsewhere

The positions are not sent, because every peer draws the same ones. At chunk 4096, this saves the 12 bits per value that
fixed-width positions of top-k take. All peers keep the same positions, so parts can be added, even by switches in the
network. For the same k, random-k drops far more of x than top-k. New positions are drawn in every round. x̂ is not
scaled up by chunk / k, because error feedback sends the dropped values later. Needs error feedback.

x is the tensor, x̂ the decoded tensor, and `values` the compressor of the kept values.
Sizes: N values, M kept values in total.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Size, Tensor

from outerloop.kernels.select import Rows, absolute, topk_positions
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError


class RandomK:
    """Compressor that keeps the values at k random positions of each chunk.

    Args:
        chunk: values in a chunk, at least 1.
        k: number of values kept per chunk, 1 .. chunk; a shorter last chunk keeps the same share, rounded up.
        values: compressor of the kept values. It receives them in order, one group per chunk.

    Raises:
        UserError: if `chunk` or `k` is out of range.
    """

    keeps_k_per_chunk = True

    def __init__(self, *, chunk: int, k: int, values: Compressor) -> None:
        if not 1 <= k <= chunk:
            raise UserError(f"randomk k={k} must be 1 .. chunk={chunk}")
        self.chunk, self.k, self.values = chunk, k, values
        self.linear = values.linear

    def rows_of(self, count: int) -> Rows:
        """Return how a tensor of `count` values is split into chunks, and how many values each keeps."""
        return Rows(count, self.chunk, self.k)

    def positions(self, rows: Rows, context: CodecContext) -> Tensor:
        """Return the kept positions, (M,) int32, in ascending order within each chunk.

        They are drawn on the CPU, so that they are the same on all devices.
        """
        draw = torch.Generator().manual_seed(context.seed)
        return topk_positions(torch.rand(rows.count, generator=draw, dtype=torch.float32), rows)

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode the kept values of x (any shape) with the compressor `values`."""
        rows = self.rows_of(x.numel())
        at_M = absolute(self.positions(rows, context).to(x.device), rows)
        return self.values.encode(x.detach().reshape(-1)[at_M], replace(context, group=self.k))

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a dense float32 tensor of `shape`. Raises ValueError if `values` cannot decode them."""
        rows = self.rows_of(shape.numel())
        device = next((part.device for part in parts.values()), None)
        dense_N = torch.zeros(rows.count, dtype=torch.float32, device=device)
        at_M = absolute(self.positions(rows, context).to(dense_N.device), rows)
        dense_N[at_M] = self.values.decode(parts, Size([rows.kept]), replace(context, group=self.k)).float()
        return dense_N.view(shape)
