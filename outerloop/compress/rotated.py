"""Rotate each chunk at random before another compressor, so that no coordinate is larger than the others.

    y = √L · WHT(s ⊙ x / L)        s: L signs drawn from the seed of the round and tensor, equal on all peers
    x̂ = s ⊙ √L · WHT(ŷ / L)       ŷ: what `of` decodes

WHT is the Walsh-Hadamard transform without a factor, WHT(x)_i = Σ_j (-1)^popcount(i & j) x_j. Divided by √L, it is
orthonormal and its own inverse, so the error of x̂ has the same norm as the error of ŷ. The rotated values of a chunk
are nearly Gaussian with equal variance, whatever the distribution of x (DRIVE, arXiv 2105.08339; QuIP#, 2402.04396).
A top-k codec then sends some of the energy of every value of x, instead of all of the energy of a few; the decoded
tensor is dense. This lowers the loss if all coordinates have updates of similar size (Muon), and raises it if a few
coordinates dominate (AdamW).

All peers use the same rotation, so an aggregate such as `senders` combines rotated values, and only its result is
rotated back. A median combines the decoded tensors.

Chunks have L = 4, 16, 64, ... values, so that √L is a power of two and only the additions round: log2 L per value, each
in float32 and in a fixed order. All machines compute the same bits. Dividing by L first keeps the sums within range. A
shorter last chunk is cut into the largest such blocks that fit, without padding.

N values, C chunks, L values per chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Size, Tensor

from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError

LARGEST = torch.finfo(torch.float32).max
VALUES_AT_ONCE = 1 << 18
"""Number of values transformed together: 1 MB of float32, which fits in the cache."""


class Rotated:
    """Compressor that rotates x chunk by chunk and passes the result to `of`. It is linear if `of` is linear.

    Args:
        chunk: values per rotation, a power of 4 from 4 to 65536. Natural: the chunk of `of`.
        of: compressor of the rotated values, which it receives as a tensor of the same shape.

    Raises:
        UserError: if `chunk` is not such a power.
    """

    def __init__(self, *, chunk: int, of: Compressor) -> None:
        if chunk not in (4**n for n in range(1, 9)):
            raise UserError(f"rotated chunk={chunk} must be a power of 4, 4 .. 65536 (4096 is usual)")
        self.chunk, self.of, self.linear = chunk, of, of.linear

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode the rotated values of x (any shape) with `of`."""
        signed_N = x.detach().float().reshape(-1) * signs(x.numel(), context.seed).to(x.device)
        return self.of.encode(self.transform(signed_N).view(x.shape), context)

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to dense float32 of `shape`. Raises ValueError if `of` cannot decode them."""
        return self.inverse(self.coefficients(parts, shape, context), context)

    def coefficients(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Return the rotated values that `of` decodes, float32 of `shape`. Raises ValueError if it cannot."""
        return self.of.decode(parts, shape, context).float()

    def inverse(self, coefficients: Tensor, context: CodecContext) -> Tensor:
        """Rotate values back, float32 of the same shape."""
        signed_N = self.transform(coefficients.reshape(-1))
        return (signed_N * signs(len(signed_N), context.seed).to(signed_N.device)).view(coefficients.shape)

    def transform(self, x_N: Tensor) -> Tensor:
        """Return the orthonormal Walsh-Hadamard transform of every chunk, clamped to the range of float32."""
        done = [hadamard_rows(block_CL).reshape(-1) for block_CL in blocks(x_N, self.chunk)]
        return torch.cat([x_N.new_zeros(0), *done])


def blocks(x_N: Tensor, chunk: int) -> Iterator[Tensor]:
    """Yield x in order as matrices whose rows have a power of 4 of values: chunks, then blocks of the last chunk."""
    full = len(x_N) - len(x_N) % chunk
    if full:
        yield from x_N[:full].view(-1, chunk).split(max(1, VALUES_AT_ONCE // chunk))
    while full < len(x_N):
        length = 4 ** int(math.log2(len(x_N) - full) / 2)
        yield x_N[full : full + length].view(1, length)
        full += length


def hadamard_rows(x_CL: Tensor) -> Tensor:
    """Return the orthonormal Walsh-Hadamard transform of rows of L = 4^n values, clamped to the range of float32.

    Each stage replaces the values a and b, whose positions differ in one bit, by a + b and a - b; the lowest bit is
    first.
    """
    chunks, length = x_CL.shape
    y_LC = (x_CL / length).T.contiguous()
    for stage in range(length.bit_length() - 1):
        a, b = y_LC.view(-1, 2, chunks << stage).unbind(1)
        y_LC = torch.stack([a + b, a - b], dim=1)
    return (y_LC.view(length, chunks).T * math.isqrt(length)).clamp(-LARGEST, LARGEST)


def signs(count: int, seed: int) -> Tensor:
    """Return `count` random signs, +1 or -1 in float32: the bits of Philox4x64, lowest first; bit 1 is -1."""
    words = np.random.Philox(key=seed).random_raw(-(-count // 64)).astype("<u8")
    bits_N = np.unpackbits(words.view(np.uint8), count=count, bitorder="little")
    return torch.from_numpy(1.0 - 2.0 * bits_N.astype(np.float32))
