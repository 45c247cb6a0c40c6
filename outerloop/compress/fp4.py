"""Quantize to 4-bit floats (E3M0: a sign and three exponent bits), as in Streaming DiLoCo (arXiv 2501.18512).

    x̂ = the nearest of 0 and ± scale * 2^(e - 7), e = 1 .. 7;  scale = max |x| of the group

Exponent 0 means zero, as in the IEEE formats. "Nearest" is by distance, not by exponent: 1.4 becomes 1 and 1.6 becomes
2. So no value has a larger error than if it were not sent. The levels span a factor of 64. This format is better than
int4 if magnitudes within a group differ by orders of magnitude, and worse otherwise: at chunk 256, the relative error
for Gaussian values is 0.19 with this format and 0.13 with int4; for Laplace values, it is 0.19 and 0.18. Streaming
DiLoCo uses this format without error feedback.

x̂ is the decoded value of x. Sizes: N values, G groups.
"""

from __future__ import annotations

from torch import Size, Tensor

from outerloop.compress import group_scaled
from outerloop.compress.group_scaled import checked_chunk, group_length
from outerloop.kernels.reference import fp4_rows, fp4_rows_decode
from outerloop.types import CodecContext, Parts


class Fp4:
    """Quantizer with 4 bits per value and one bfloat16 scale per group.

    Args:
        chunk: values per group. Use None inside a sparse codec, where a group is the kept values of one chunk.

    Raises:
        UserError: if `chunk` is not positive.
    """

    linear = False

    def __init__(self, *, chunk: int | None) -> None:
        self.chunk = checked_chunk("fp4", chunk)

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (N values, any shape) to "code", ceil(N / 2) uint8, and "scale", one bfloat16 per group."""
        return group_scaled.encode(x, group_length(self.chunk, x.numel(), context), 4, fp4_rows)

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a float32 tensor of `shape`. Raises ValueError on wrong sizes or invalid scales."""
        length = group_length(self.chunk, shape.numel(), context)
        return group_scaled.decode(parts, shape, length, 4, fp4_rows_decode)
