"""The one-bit code for kept values: a sign for each value, and one magnitude for each group.

Sizes: N values, G groups of `group` values (the last group may be shorter), P peers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outerloop.kernels.operator import operator
from outerloop.kernels.reference import pack_codes, sign_rows, sign_rows_decode, unpack_codes
from outerloop.kernels.select import decode_rows, encode_rows


@operator()
def sign_encode(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Encode x, (N,) float32, to signs, ceil(N / 8) uint8, and one magnitude for each of G groups, (G,) bfloat16.

    A bit is 1 if the value is below 0. The magnitude is the mean of the group's |x|, computed in float64 and clamped to
    the largest finite bfloat16 value.
    """
    code_N, scale_G = encode_rows(x, group, sign_rows)
    return pack_codes(code_N, 1), scale_G


@operator()
def sign_decode(code: list[Tensor], scale: list[Tensor], count: int, group: int) -> Tensor:
    """Decode the signs and magnitudes of P >= 1 peers to (P, count) float32: −scale where the bit is 1, else scale.

    code: for each peer, `count` bits, ceil(count / 8) uint8. scale: for each peer, (G,) bfloat16.
    """
    bits = [unpack_codes(packed, 1, count) for packed in code]
    both = zip(bits, scale, strict=True)
    return torch.stack([decode_rows(bit_N, scale_G, group, sign_rows_decode) for bit_N, scale_G in both])


@sign_encode.fake
def _(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    count = x.numel()
    return x.new_empty(-(-count // 8), dtype=torch.uint8), x.new_empty(-(-count // group), dtype=torch.bfloat16)


@sign_decode.fake
def _(code: list[Tensor], scale: list[Tensor], count: int, group: int) -> Tensor:
    return scale[0].new_empty(len(scale), count, dtype=torch.float32)
