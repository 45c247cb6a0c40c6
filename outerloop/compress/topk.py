"""Chunk-wise top-k (SparseLoCo, arXiv 2508.15706): keep the k largest magnitudes of every chunk.

    kept = the k largest of |x| in each chunk, ties to the lowest position;  x̂ = values(x[kept]), 0 elsewhere

A chunk is `chunk` consecutive values in memory order. A shorter last chunk is not padded and keeps the same share,
rounded up. A code from compress/index encodes the positions, and another compressor encodes the kept values. Needs
error feedback.

The payloads of several peers are decoded together if the compressor of the kept values supports it, otherwise one by
one.

x is the tensor, x̂ the decoded tensor, and `values` the compressor of the kept values.
Sizes: N values, C chunks, L values per chunk, K of them kept, M kept values in total, P peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Size, Tensor

from outerloop.compress import nested_parts, with_prefix
from outerloop.compress.index import Index
from outerloop.kernels.portable import geometric
from outerloop.kernels.select import Rows, Selection, absolute, select
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError


def decode_all(codec: Compressor, parts_P: Sequence[Parts], shape: Size, context: CodecContext) -> Tensor:
    """Decode the parts of P >= 1 peers to (P, *shape) float32. Raises ValueError on invalid parts.

    Uses the method `decode_all` of the codec, with the same arguments and result, if it has one: that is faster than
    one peer after another.
    """
    together = getattr(codec, "decode_all", None)  # isinstance with a protocol would take 5 µs per tensor
    if together:
        return together(parts_P, shape, context)
    return torch.stack([codec.decode(parts, shape, context).float() for parts in parts_P])


class TopK:
    """Compressor that keeps the exact top-k of each chunk.

    Args:
        chunk: values per chunk, 2 .. 65536. SparseLoCo: 4096.
        k: number of values kept per chunk, 1 .. chunk. SparseLoCo: 128 (512M parameters), 64 (72B).
        values: compressor of the kept values. It receives them in order, one group per chunk.
        index: encoding of the kept positions.
        warmup_rounds: rounds over which the kept share decreases geometrically from 1 to k / chunk; 0 for no warm-up.

    Raises:
        UserError: if `chunk`, `k` or `warmup_rounds` is out of range.
    """

    linear = False
    keeps_k_per_chunk = True

    def __init__(self, *, chunk: int, k: int, values: Compressor, index: Index, warmup_rounds: int = 0) -> None:
        if not 2 <= chunk <= 65536:
            raise UserError(f"topk chunk={chunk} must be 2 .. 65536 (4096 is usual)")
        if not 1 <= k <= chunk:
            raise UserError(f"topk k={k} must be 1 .. chunk={chunk}")
        if warmup_rounds < 0:
            raise UserError(f"topk warmup_rounds={warmup_rounds} must be at least 0")
        self.chunk, self.k, self.values, self.index, self.warmup_rounds = chunk, k, values, index, warmup_rounds

    def sparse_codec(self, shape: Size) -> TopK:
        """Return self: this codec is its own description for the kernels, which select the same values."""
        return self

    def k_at(self, number: int) -> int:
        """Return how many values of a full chunk are kept in round `number`.

        This is chunk · (k / chunk)^(number / warmup_rounds) during warm-up, then k.
        """
        if number >= self.warmup_rounds:
            return self.k
        return geometric(self.chunk, self.k, number, self.warmup_rounds)

    def rows_at(self, count: int, context: CodecContext) -> Rows:
        """Return how a tensor of `count` values is split into chunks in this round, and how many values each keeps."""
        return Rows(count, self.chunk, self.k_at(context.round))

    def signs(self, count: int, context: CodecContext) -> None:
        """Return None, because this codec does not rotate values."""

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (any shape) to "index" (uint8, the kept positions) and "values.*" (the encoded kept values)."""
        rows = self.rows_at(x.numel(), context)
        dense, how = x.detach().float().contiguous(), Selection(0.0, rows.chunk, rows.k)
        position_M, value_M, _ = select(dense, None, None, None, None, how)
        return self.pack(position_M, value_M, rows, context)

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a dense float32 tensor of `shape`. Raises ValueError if `parts` are invalid."""
        rows = self.rows_at(shape.numel(), context)
        position_1M, value_1M = self.unpack([parts], rows, context)
        dense_N = torch.zeros(shape.numel(), dtype=torch.float32, device=value_1M.device)
        dense_N[absolute(position_1M[0], rows)] = value_1M[0]
        return dense_N.view(shape)

    def pack(self, position_M: Tensor, value_M: Tensor, rows: Rows, context: CodecContext) -> Parts:
        """Encode M kept positions (int32) and values (float32), ordered by chunk, to parts."""
        values = self.values.encode(value_M, replace(context, group=rows.k))
        return {"index": self.index.encode(position_M, rows)} | with_prefix(values)

    def unpack(self, parts_P: Sequence[Parts], rows: Rows, context: CodecContext) -> tuple[Tensor, Tensor]:
        """Invert `pack` for P peers. Return positions and values, (P, M) each. Raises ValueError on invalid parts."""
        values = [nested_parts("index", parts) for parts in parts_P]
        position_PM = self.index.decode([parts["index"] for parts in parts_P], rows)
        return position_PM, decode_all(self.values, values, Size([rows.kept]), replace(context, group=rows.k))
