"""Cast values to bfloat16 (8 bits of precision, range of float32) or float16 (11 bits of precision, up to 65504)."""

from __future__ import annotations

import torch
from torch import Size, Tensor

from outerloop.compress.identity import checked_dense
from outerloop.types import CodecContext, Parts, UserError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Cast:
    """Compressor with 16 bits per value. Values beyond the range of the dtype are clamped instead of overflowing.

    Args:
        dtype: "bfloat16" or "float16". float16 is more accurate for magnitudes from about 1e-5 to 65504, bfloat16 for
            smaller ones: float16 rounds to multiples of 6e-8 there. Prefer bfloat16 if the range is unknown.

    Raises:
        UserError: for any other dtype.
    """

    linear = True

    def __init__(self, *, dtype: str) -> None:
        if dtype not in DTYPES:
            raise UserError(f"compress dtype {dtype!r} is not one of {', '.join(DTYPES)}: set compress.dtype=bfloat16")
        self.dtype = DTYPES[dtype]

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (N values, any shape) to "value" (N,) in the 16-bit dtype, rounding to nearest even."""
        largest = torch.finfo(self.dtype).max
        return {"value": x.detach().reshape(-1).clamp(-largest, largest).to(self.dtype)}

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode "value" to a float32 tensor of `shape`. Raises ValueError on a wrong count or dtype, inf or NaN."""
        value = checked_dense(parts, shape)
        if value.dtype != self.dtype:
            raise ValueError(f"expected {self.dtype}, got {value.dtype}")
        return value.float()
