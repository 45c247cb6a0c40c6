"""Chunk-wise top-k (SparseLoCo, arXiv 2508.15706): of every `chunk` consecutive values the `k` largest magnitudes.

    kept = the k largest of |x| in each chunk, ties to the lowest position;  x̂ = values(x[kept]), 0 elsewhere

The positions go through a code of compress/index, the kept values through another compressor. A tensor is cut as it
lies in memory; the ragged last chunk keeps the same share, rounded up, and nothing is padded. Needs error feedback.

N values, C chunks, L chunk length, K kept per chunk, M kept in all.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Size, Tensor

from outerloop.compress.groups import split_rows
from outerloop.compress.index import Index
from outerloop.kernels.reference import topk_rows
from outerloop.kernels.rows import Rows
from outerloop.types import Compressor, Moment, Parts, UserError


class TopK:
    """Exact top-k of each chunk.

    Args:
        chunk: values in a chunk, 2 .. 65536. SparseLoCo: 4096.
        k: kept per chunk, 1 .. chunk. SparseLoCo: 128 (512M parameters), 64 (72B).
        values: compressor of the kept values; it sees them in order, in groups of what one chunk kept.
        index: code of the kept positions.
        warmup_rounds: rounds over which the kept share falls geometrically from everything to k / chunk; 0 for none.

    Raises:
        UserError: if `chunk`, `k` or `warmup_rounds` is out of range.
    """

    linear = False

    def __init__(self, *, chunk: int, k: int, values: Compressor, index: Index, warmup_rounds: int = 0) -> None:
        if not 2 <= chunk <= 65536:
            raise UserError(f"topk chunk={chunk} must be 2 .. 65536 (4096 is usual)")
        if not 1 <= k <= chunk:
            raise UserError(f"topk k={k} must be 1 .. chunk={chunk}")
        if warmup_rounds < 0:
            raise UserError(f"topk warmup_rounds={warmup_rounds} must be at least 0")
        self.chunk, self.k, self.values, self.index, self.warmup_rounds = chunk, k, values, index, warmup_rounds

    def k_at(self, number: int) -> int:
        """Kept of a whole chunk in this round: chunk · (k / chunk)^(round / warmup_rounds), then k."""
        if number >= self.warmup_rounds:
            return self.k
        return round(self.chunk * (self.k / self.chunk) ** (number / self.warmup_rounds))

    def kept(self, row_length: int, k: int) -> int:
        """How many values a chunk of this length keeps: the same share, rounded up."""
        return -(-k * row_length // self.chunk)

    def encode(self, x: Tensor, moment: Moment) -> Parts:
        """(N values, any shape) -> "index" uint8 (positions in the chunk) and "values.*"."""
        k = self.k_at(moment.round)
        rows = split_rows(x.detach().reshape(-1), self.chunk)
        picked = [topk_rows(row_CL, self.kept(row_CL.shape[1], k)) for row_CL in rows]
        value = [row_CL.gather(1, index_CK).view(-1) for row_CL, index_CK in zip(rows, picked, strict=True)]
        index_M = torch.cat([index_CK.view(-1) for index_CK in picked]) if rows else x.new_zeros(0, dtype=torch.int64)
        value_M = torch.cat(value) if rows else x.new_zeros(0)
        nested = {
            f"values.{name}": part for name, part in self.values.encode(value_M, replace(moment, group=k)).items()
        }
        return {"index": self.index.encode(index_M.int(), Rows(x.numel(), self.chunk, k))} | nested

    def decode(self, parts: Parts, shape: Size, moment: Moment) -> Tensor:
        """Parts -> dense float32 of `shape`. Raises ValueError as `index` and `values` do."""
        dense_N = torch.zeros(shape.numel(), device=parts["index"].device)
        k = self.k_at(moment.round)
        rows = split_rows(dense_N, self.chunk)
        counts = [row_CL.shape[0] * self.kept(row_CL.shape[1], k) for row_CL in rows]
        index_M = self.index.decode(parts["index"], Rows(shape.numel(), self.chunk, k)).long()
        nested = {name.removeprefix("values."): part for name, part in parts.items() if name != "index"}
        value_M = self.values.decode(nested, Size([sum(counts)]), replace(moment, group=k)).float()
        for row_CL, index, value in zip(rows, index_M.split(counts), value_M.split(counts), strict=True):
            index_CK = index.view(row_CL.shape[0], -1)
            row_CL.scatter_(1, index_CK, value.view_as(index_CK))
        return dense_N.view(shape)
