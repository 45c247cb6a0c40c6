"""Quantize to evenly spaced levels, symmetric around zero (int8, int4 or ternary), rounding to nearest.

    top = 2^(bits-1) - 1;  scale = max |x| / top;  code = round(x / scale) in -top .. top;  x̂ = code * scale

The scale is set by the largest magnitude of a group, not of the tensor, so a large value makes the levels coarser only
in its own group. Zero is a level and values are rounded to the nearest level, so no value has a larger error than if it
were not sent. With 2 bits, this codec needs error feedback, and `two_bit` is better: the relative error of `two_bit` is
0.35, and that of this codec is 0.81 (Gaussian values, chunk 256). LoCo (arXiv 2407.04480) sends int4 values with its
own kind of error feedback (feedback/loco.py).

x̂ is the decoded value of x. Sizes: N values, G groups.
"""

from __future__ import annotations

from functools import partial

from torch import Size, Tensor

from outerloop.compress import group_scaled
from outerloop.compress.group_scaled import checked_chunk, group_length
from outerloop.kernels.reference import uniform_rows, uniform_rows_decode
from outerloop.types import CodecContext, Parts, UserError


class Uniform:
    """Quantizer with `bits` bits per value and one bfloat16 scale per group.

    Args:
        bits: 2, 4 or 8.
        chunk: values per group. Use None inside a sparse codec, where a group is the kept values of one chunk.

    Raises:
        UserError: if `bits` or `chunk` is out of range.
    """

    linear = False

    def __init__(self, *, bits: int, chunk: int | None) -> None:
        if bits not in (2, 4, 8):
            raise UserError(f"uniform bits={bits} is not one of 2, 4, 8: set compress=int8 or compress=int4")
        self.bits, self.chunk = bits, checked_chunk("uniform", chunk)

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (N values, any shape) to "code", ceil(N * bits / 8) uint8, and "scale", one bfloat16 per group."""
        length = group_length(self.chunk, x.numel(), context)
        return group_scaled.encode(x, length, self.bits, partial(uniform_rows, bits=self.bits))

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a float32 tensor of `shape`. Raises ValueError on wrong sizes, invalid scales or codes."""
        length = group_length(self.chunk, shape.numel(), context)
        return group_scaled.decode(parts, shape, length, self.bits, partial(uniform_rows_decode, bits=self.bits))
