"""Apply a random rotation to each chunk before another compressor, so that no coordinate is much larger than others.

    y = R x, x̂ = Rᵀ ŷ       R: random signs, then an orthonormal Walsh-Hadamard transform (kernels/rotation.py)

x are the values of a chunk, and ŷ is what `of` decodes. R is orthonormal, so the error of x̂ has the same norm as the
error of ŷ. The signs are drawn from the seed of the round and tensor, so they are equal on all peers. The rotated
values of a chunk are nearly Gaussian with equal variance, whatever the distribution of x (DRIVE, arXiv 2105.08339;
QuIP#, 2402.04396).

A top-k codec then sends part of the energy of every value of x, instead of all the energy of a few; the decoded
tensor is dense. This lowers the loss if all coordinates have updates of similar size (Muon), and raises it if a few
coordinates dominate (AdamW).

All peers use the same rotation, so an aggregate such as `senders` combines rotated values, and only its result is
rotated back. The median of rotated values is not the rotated median, so `median` combines the decoded tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Size, Tensor

from outerloop.compress.by_size import refuse_warm_start
from outerloop.kernels.rotation import random_signs, rotate
from outerloop.kernels.select import Rows
from outerloop.kernels.specs import SparseCodec, sparse_codec
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError


class Rotated:
    """Compressor that rotates x chunk by chunk and passes the result to `of`. It is linear if `of` is linear.

    Args:
        chunk: values per rotation, a power of 4 from 4 to 65536. The chunk of `of` is a natural choice.
        of: compressor of the rotated values, which it receives as a tensor of the same shape.

    Raises:
        UserError: if `chunk` is not a power of 4 in this range, or if `of` has a warm start.
    """

    def __init__(self, *, chunk: int, of: Compressor) -> None:
        if chunk not in (4**n for n in range(1, 9)):
            raise UserError(f"rotated chunk={chunk} must be a power of 4, 4 .. 65536 (4096 is usual)")
        refuse_warm_start(of, transform="rotated")
        self.chunk, self.of, self.linear = chunk, of, of.linear

    def sparse_codec(self, shape: Size) -> RotatedSparse | None:
        """Return the description of this codec for the kernels, or None if they cannot combine rotation with `of`."""
        sparse = sparse_codec(self.of, shape)
        if sparse is None or sparse.chunk != self.chunk or isinstance(sparse, RotatedSparse):
            return None
        return RotatedSparse(sparse)

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode the rotated values of x (any shape) with `of`."""
        return self.of.encode(self.rotate(x.detach().float(), context, back=False), context)

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a dense float32 tensor of `shape`. Raises ValueError if `of` cannot decode them."""
        return self.inverse(self.coefficients(parts, shape, context), context)

    def coefficients(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to rotated values, a float32 tensor of `shape`. Raises ValueError if `of` cannot decode them."""
        return self.of.decode(parts, shape, context).float()

    def inverse(self, coefficients: Tensor, context: CodecContext) -> Tensor:
        """Undo the rotation. Return a float32 tensor of the same shape."""
        return self.rotate(coefficients, context, back=True)

    def rotate(self, x: Tensor, context: CodecContext, *, back: bool) -> Tensor:
        """Rotate x with the random signs of this round and tensor, or undo that rotation if `back` is true."""
        negative = random_signs(x.numel(), context.seed).to(x.device)
        return rotate(x.reshape(-1), negative, self.chunk, back).view(x.shape)


class RotatedSparse:
    """Description of a rotated sparse codec for the kernels: the codec `of`, plus the random signs of the rotation."""

    def __init__(self, of: SparseCodec) -> None:
        self.of, self.chunk, self.k = of, of.chunk, of.k

    def rows_at(self, count: int, context: CodecContext) -> Rows:
        """Return how a tensor of `count` values is split into chunks in this round, and how many values each keeps."""
        return self.of.rows_at(count, context)

    def signs(self, count: int, context: CodecContext) -> Tensor:
        """Return the random signs of the rotation in this round."""
        return random_signs(count, context.seed)

    def pack(self, position_M: Tensor, value_M: Tensor, rows: Rows, context: CodecContext) -> Parts:
        """Encode kept positions and rotated values with `of`."""
        return self.of.pack(position_M, value_M, rows, context)

    def unpack(self, parts_P: Sequence[Parts], rows: Rows, context: CodecContext) -> tuple[Tensor, Tensor]:
        """Decode the kept positions and rotated values of P peers with `of`."""
        return self.of.unpack(parts_P, rows, context)
