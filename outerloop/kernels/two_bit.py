"""The two-bit code for kept values: `mean_split` of every group, four codes per byte.

Sizes: N values, G groups of `group` values (the last group may be shorter), P peers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outerloop.kernels.operator import operator
from outerloop.kernels.reference import mean_split, mean_split_decode, pack_codes, unpack_codes
from outerloop.kernels.select import decode_rows, encode_rows


@operator()
def two_bit_encode(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Encode x, (N,) float32, to codes, ceil(N / 4) uint8, and two levels for each of G groups, (G, 2) bfloat16."""
    code_N, level_G2 = encode_rows(x, group, mean_split)
    return pack_codes(code_N, 2), level_G2


@operator()
def two_bit_decode(code: list[Tensor], level: list[Tensor], count: int, group: int) -> Tensor:
    """Decode the codes and levels of P >= 1 peers to (P, count) float32."""
    return torch.stack([decode_one(*both, count, group) for both in zip(code, level, strict=True)])


def decode_one(code: Tensor, level: Tensor, count: int, group: int) -> Tensor:
    """Decode the codes and levels of one peer to (count,) float32."""
    return decode_rows(unpack_codes(code, 2, count), level, group, mean_split_decode)


@two_bit_encode.fake
def _(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    count = x.numel()
    return x.new_empty(-(-count // 4), dtype=torch.uint8), x.new_empty(-(-count // group), 2, dtype=torch.bfloat16)


@two_bit_decode.fake
def _(code: list[Tensor], level: list[Tensor], count: int, group: int) -> Tensor:
    return level[0].new_empty(len(level), count, dtype=torch.float32)
