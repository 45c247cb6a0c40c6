"""Random-k: of every `chunk` consecutive values `k`, at positions drawn from the seed (arXiv 1809.07599).

    kept = k positions of each chunk, uniform without repetition;  x̂ = values(x[kept]), 0 elsewhere

The positions are not sent, every peer draws them: 12 bits a value less than top-k at chunk 4096, and all peers keep the
same ones, so parts add up and a sum inside the network is possible. For the same k it drops far more of x than top-k.
The draws are new every round; x̂ is not scaled up by chunk / k, feedback brings what was left out. Needs error feedback.

C chunks, L chunk length, K kept per chunk, M kept in all.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Size, Tensor

from outerloop.compress.groups import split_rows
from outerloop.kernels.reference import topk_rows
from outerloop.types import Compressor, Moment, Parts, UserError


class RandomK:
    """A random k of each chunk.

    Args:
        chunk: values in a chunk, at least 1.
        k: kept per chunk, 1 .. chunk; the ragged last chunk keeps the same share, rounded up.
        values: compressor of the kept values; it sees them in order, in groups of what one chunk kept.

    Raises:
        UserError: if `chunk` or `k` is out of range.
    """

    def __init__(self, *, chunk: int, k: int, values: Compressor) -> None:
        if not 1 <= k <= chunk:
            raise UserError(f"randomk k={k} must be 1 .. chunk={chunk}")
        self.chunk, self.k, self.values = chunk, k, values
        self.linear = values.linear

    def kept(self, row_length: int) -> int:
        """How many values a chunk of this length keeps: the same share, rounded up."""
        return -(-self.k * row_length // self.chunk)

    def positions(self, rows: list[Tensor], moment: Moment) -> list[Tensor]:
        """Ascending positions for each item of `rows`; drawn on the CPU, so that all devices agree."""
        generator = torch.Generator().manual_seed(moment.seed)
        drawn = [
            topk_rows(torch.rand(row_CL.shape, generator=generator), self.kept(row_CL.shape[1])) for row_CL in rows
        ]
        return [index_CK.to(row_CL.device) for index_CK, row_CL in zip(drawn, rows, strict=True)]

    def encode(self, x: Tensor, moment: Moment) -> Parts:
        """(N values, any shape) -> the parts of the kept values (M,)."""
        rows = split_rows(x.detach().reshape(-1), self.chunk)
        picked = zip(rows, self.positions(rows, moment), strict=True)
        value_M = torch.cat([x.new_zeros(0), *(row_CL.gather(1, index_CK).view(-1) for row_CL, index_CK in picked)])
        return self.values.encode(value_M, replace(moment, group=self.k))

    def decode(self, parts: Parts, shape: Size, moment: Moment) -> Tensor:
        """Parts -> dense float32 of `shape`. Raises ValueError when `values` cannot decode them."""
        dense_N = torch.zeros(shape.numel(), device=next((part.device for part in parts.values()), None))
        rows = split_rows(dense_N, self.chunk)
        picked = self.positions(rows, moment)
        counts = [index_CK.numel() for index_CK in picked]
        value_M = self.values.decode(parts, Size([sum(counts)]), replace(moment, group=self.k)).float()
        for row_CL, index_CK, value in zip(rows, picked, value_M.split(counts), strict=True):
            row_CL.scatter_(1, index_CK, value.view_as(index_CK))
        return dense_N.view(shape)
