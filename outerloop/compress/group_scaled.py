"""Encode values as packed codes of 1, 2, 4 or 8 bits, with one bfloat16 scale per group.

A group is `length` consecutive values; the last group may be shorter.

Scales are bfloat16, which has the range of float32 in half the bytes. Rounding a scale costs almost no accuracy if
codes are computed with the rounded scale. If the rounded scale is too small by a factor of 1 - 2^-9, the highest level,
127 · scale, is a quarter of a step below the largest value.

Sizes: N values, G groups, L values per group.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Size, Tensor

from outerloop.compress import check_names
from outerloop.kernels.reference import pack_codes, unpack_codes
from outerloop.kernels.select import decode_rows, encode_rows
from outerloop.types import CodecContext, Parts, UserError


def checked_chunk(name: str, chunk: int | None) -> int | None:
    """Return a codec's `chunk` setting. Raises UserError if it is not positive."""
    if chunk is not None and chunk < 1:
        raise UserError(f"{name} chunk={chunk} must be at least 1, or null inside a sparse codec")
    return chunk


def group_length(chunk: int | None, count: int, context: CodecContext) -> int:
    """Return the number of values per group: `chunk` if set, else the enclosing codec's group length, else `count`."""
    return chunk or context.group or max(1, count)


def encode(x: Tensor, length: int, bits: int, quantize: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Parts:
    """Encode x (N values, any shape) to "code", ceil(N * bits / 8) uint8, and "scale", one bfloat16 per group.

    `quantize` maps G groups of L values, (G, L), to codes (G, L) uint8 and scales (G,) bfloat16.
    """
    code_N, scale_G = encode_rows(x.detach().reshape(-1), length, quantize)
    return {"code": pack_codes(code_N, bits), "scale": scale_G}


def decode(parts: Parts, shape: Size, length: int, bits: int, dequantize: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Decode "code" and "scale" to a float32 tensor of `shape`.

    Raises ValueError on other parts, wrong sizes, a negative or non-finite scale, or padding that is not zero.

    `dequantize` maps the codes (G, L) uint8 and scales (G,) bfloat16 of G groups of L values to (G, L) float32.
    """
    check_names(parts, "code", "scale")
    check_scales(parts["scale"], shape.numel(), length)
    code_N = unpack_codes(parts["code"], bits, shape.numel())
    return decode_rows(code_N, parts["scale"], length, dequantize).view(shape)


def check_scales(scale_G: Tensor, count: int, length: int) -> None:
    """Raise ValueError unless there is one valid scale for each group of `length` of `count` values."""
    if scale_G.shape != (-(-count // length),) or scale_G.dtype != torch.bfloat16:
        raise ValueError(f"scales of shape {tuple(scale_G.shape)} do not fit {count} values in groups of {length}")
    if not all_magnitudes(scale_G):
        raise ValueError("a scale is negative or not finite")


def all_magnitudes(scale: Tensor) -> bool:
    """Return whether all bfloat16 values are finite and not negative (-0 counts as negative).

    Read as int16, the bits of such values are at least 0 and below 0x7F80, the bits of infinity.
    """
    if not scale.numel():
        return True
    lowest, highest = scale.view(torch.int16).aminmax()
    return int(lowest) >= 0 and int(highest) < 0x7F80
