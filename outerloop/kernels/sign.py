"""The one-bit code for kept values: a sign for each value, and one magnitude for each group.

Sizes: N values, G groups of `group` values (the last group may be shorter), P peers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outerloop.kernels.operator import operator
from outerloop.kernels.reference import sign_rows_decode, unpack_codes
from outerloop.kernels.select import decode_rows


@operator()
def sign_decode(code: list[Tensor], scale: list[Tensor], count: int, group: int) -> Tensor:
    """Decode the signs and magnitudes of P >= 1 peers to (P, count) float32: −scale where the bit is 1, else scale.

    code: for each peer, `count` bits, ceil(count / 8) uint8. scale: for each peer, (G,) bfloat16.
    """
    bits = [unpack_codes(packed, 1, count) for packed in code]
    both = zip(bits, scale, strict=True)
    return torch.stack([decode_rows(bit_N, scale_G, group, sign_rows_decode) for bit_N, scale_G in both])


@sign_decode.fake
def _(code: list[Tensor], scale: list[Tensor], count: int, group: int) -> Tensor:
    return scale[0].new_empty(len(scale), count, dtype=torch.float32)
