"""Apply a cosine transform before another compressor, which then encodes the coefficients (DeMo, arXiv 2411.19870).

    c_k = s_k Σ_n x_n cos(π (2n + 1) k / 2L),  s_0 = √(1/L), other s_k = √(2/L)   orthonormal DCT-II of each chunk
    x̂_n = Σ_k ĉ_k s_k cos(π (2n + 1) k / 2L)

The transform is orthonormal, so the error of x̂ has the same norm as the error of ĉ. A shorter last chunk gets a
shorter transform, without padding. DeMo cuts matrices into 64 x 64 blocks, transforms both dimensions and keeps 32 of
the 4096 coefficients of a block. Here a tensor is cut into chunks in memory order, and 64 transforms of 64 values share
one top-k chunk of 4096 values, so that the same fraction can be kept.

Every multiplication and addition is rounded separately, in a fixed order, in float64. The last bits of a matmul would
depend on the processor, but all peers must decode to the same bits. For even L, the transform is split into sums and
differences of mirrored values, which reduces the work to a third at L = 64.

x are the values of a chunk, c their coefficients; x̂ and ĉ are the decoded ones.
Sizes: C chunks, L values per chunk, H = L / 2, K terms of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Size, Tensor

from outerloop.compress.by_size import refuse_warm_start
from outerloop.kernels.portable import cosine
from outerloop.kernels.select import split_rows
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError

LARGEST = torch.finfo(torch.float32).max
ROWS_AT_ONCE = 4096
"""Number of chunks transformed together: 2 MB of float64 at L = 64, which fits in the cache."""


class Dct:
    """Compressor that transforms x chunk by chunk and passes the coefficients to `of`. It is linear if `of` is linear.

    Args:
        chunk: values per transform, 1 .. 1024. The work per value grows with the chunk size. DeMo uses 64.
        of: compressor of the coefficients, which it receives as a tensor of the same shape.

    Raises:
        UserError: if `chunk` is out of range, or if `of` has a warm start.
    """

    def __init__(self, *, chunk: int, of: Compressor) -> None:
        if not 1 <= chunk <= 1024:
            raise UserError(f"dct chunk={chunk} must be 1 .. 1024 (64 is usual)")
        refuse_warm_start(of, transform="dct")
        self.chunk, self.of, self.linear = chunk, of, of.linear

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode the coefficients of x (any shape) with `of`."""
        return self.of.encode(self.by_chunk(dct_rows, x.detach()), context)

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a float32 tensor of `shape`. Raises ValueError if `of` cannot decode them."""
        return self.inverse(self.coefficients(parts, shape, context), context)

    def coefficients(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to coefficients, a float32 tensor of `shape`. Raises ValueError if `of` cannot decode them."""
        return self.of.decode(parts, shape, context)

    def inverse(self, coefficients: Tensor, context: CodecContext) -> Tensor:
        """Transform coefficients back to values, a float32 tensor of the same shape."""
        return self.by_chunk(idct_rows, coefficients)

    def by_chunk(self, transform: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply `transform` to every chunk, and clamp to the float32 range. Return float32 in the shape of x."""
        blocks = [block for row_CL in split_rows(x.reshape(-1), self.chunk) for block in row_CL.split(ROWS_AT_ONCE)]
        done = [transform(block_CL.double()).clamp(-LARGEST, LARGEST).float().view(-1) for block_CL in blocks]
        return torch.cat([x.new_zeros(0, dtype=torch.float32), *done]).view(x.shape)


def dct_rows(x_CL: Tensor) -> Tensor:
    """Return the orthonormal DCT-II of each row."""
    length = x_CL.shape[1]
    if length % 2:
        return combine(x_CL, basis(length).T)
    left_CH, right_CH = x_CL[:, : length // 2], x_CL[:, length // 2 :].flip(1)
    c_CL = torch.empty_like(x_CL)
    c_CL[:, 0::2] = dct_rows(left_CH + right_CH) * math.sqrt(0.5)
    c_CL[:, 1::2] = combine(left_CH - right_CH, basis(length)[1::2, : length // 2].T)
    return c_CL


def idct_rows(c_CL: Tensor) -> Tensor:
    """Return the inverse transform of each row; inverts `dct_rows`."""
    length = c_CL.shape[1]
    if length % 2:
        return combine(c_CL, basis(length))
    even_CH = idct_rows(c_CL[:, 0::2]) * math.sqrt(0.5)
    odd_CH = combine(c_CL[:, 1::2], basis(length)[1::2, : length // 2])
    return torch.cat([even_CH + odd_CH, (even_CH - odd_CH).flip(1)], dim=1)


def combine(x_CK: Tensor, weight_KL: Tensor) -> Tensor:
    """Return Σ_k x[:, k] * weight[k], summed in order of k."""
    weight_KL = weight_KL.to(x_CK.device)
    out_CL = x_CK[:, :1] * weight_KL[0]
    for k in range(1, x_CK.shape[1]):
        out_CL += x_CK[:, k : k + 1] * weight_KL[k]
    return out_CL


@cache
def basis(length: int) -> Tensor:
    """Return the orthonormal DCT-II matrix of size `length`, float64, with the same bits for every math library.

    The entry [k, n] is s_k cos(π (2n + 1) k / 2L), where L is `length`, s_0 = √(1/L), and other s_k = √(2/L).
    """
    turn = 4 * length
    cosines = torch.tensor([cosine(angle / (2 * length)) for angle in range(2 * length + 1)], dtype=torch.float64)
    angle_LL = torch.arange(length)[:, None] * (2 * torch.arange(length) + 1) % turn
    scale_L = torch.tensor([math.sqrt((2 if k else 1) / length) for k in range(length)], dtype=torch.float64)
    return scale_L[:, None] * cosines[torch.minimum(angle_LL, turn - angle_LL)]
