"""Quantize to two bits per value: a sign bit and a magnitude bit, with two magnitudes per group ("mean split").

    m = mean |x|;  x̂ = sign(x) * (mean of the |x| above m  if |x| > m  else  mean of the |x| at or below m)

Each group has its own magnitudes: chunks differ in scale by orders of magnitude, and one scale for a whole tensor would
map most values to zero. For the kept values of a real residual at k = 64, the relative L2 error is 0.010, compared with
0.51 for the per-tensor bins of SparseLoCo (arXiv 2508.15706). Needs error feedback.

x̂ is the decoded value of x. Sizes: N values, G groups, L values per group; the last group may be shorter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Size, Tensor

from outerloop.compress import check_names
from outerloop.compress.group_scaled import all_magnitudes, checked_chunk, group_length
from outerloop.kernels.reference import check_codes
from outerloop.kernels.two_bit import two_bit_decode, two_bit_encode
from outerloop.types import CodecContext, Parts


class TwoBit:
    """Quantizer with 2 bits per value and two bfloat16 magnitudes per group.

    Args:
        chunk: values per group. Use None inside a sparse codec, where a group is the kept values of one chunk.

    Raises:
        UserError: if `chunk` is not positive.
    """

    linear = False

    def __init__(self, *, chunk: int | None) -> None:
        self.chunk = checked_chunk("two_bit", chunk)

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (N values, any shape) to "code", ceil(N / 4) uint8, and "level", two bfloat16 values per group."""
        code, level_G2 = two_bit_encode(x.detach().float().reshape(-1), group_length(self.chunk, x.numel(), context))
        return {"code": code, "level": level_G2}

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a float32 tensor of `shape`. Raises ValueError on wrong sizes or invalid levels."""
        return self.decode_all([parts], shape, context)[0]

    def decode_all(self, parts_P: Sequence[Parts], shape: Size, context: CodecContext) -> Tensor:
        """Decode the parts of P peers together to (P, *shape) float32. Raises ValueError if any parts are invalid."""
        count = shape.numel()
        group = group_length(self.chunk, count, context)
        for parts in parts_P:
            check_names(parts, "code", "level")
            check(parts["code"], parts["level"], count, group)
        codes, levels = ([parts[name] for parts in parts_P] for name in ("code", "level"))
        return two_bit_decode(codes, levels, count, group).view(len(codes), *shape)


def check(code: Tensor, level_G2: Tensor, count: int, group: int) -> None:
    """Raise ValueError unless there are `count` packed codes, and two valid magnitudes per group of `group` values."""
    if level_G2.shape != (-(-count // group), 2) or level_G2.dtype != torch.bfloat16:
        raise ValueError(f"levels of shape {tuple(level_G2.shape)} do not fit {count} values in groups of {group}")
    if not all_magnitudes(level_G2):
        raise ValueError("a level is negative or not finite")
    check_codes(code, 2, count)
