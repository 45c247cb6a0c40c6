"""What the codecs of one scale a group share: codes of 1, 2, 4 or 8 bits, packed, and one bfloat16 scale a group.

A group is `length` consecutive values; the last one may be shorter.

bfloat16 and not float32: it has the same range, half the bytes, and its rounding costs next to nothing where codes are
taken against the rounded scale (127 steps of a scale that is 2^-9 too small miss the largest value by a quarter step).

N values, G groups, L values a group.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Size, Tensor

from outerloop.kernels.reference import pack_codes, unpack_codes
from outerloop.kernels.rows import split_rows, split_rows_of_levels
from outerloop.types import CodecContext, Parts, UserError


def checked_chunk(name: str, chunk: int | None) -> int | None:
    """A codec's `chunk` setting. Raises UserError when it is not positive."""
    if chunk is not None and chunk < 1:
        raise UserError(f"{name} chunk={chunk} must be at least 1, or null inside a sparse codec")
    return chunk


def group_length(chunk: int | None, count: int, moment: CodecContext) -> int:
    """Values in a group: as set, as the outer codec says, or all of them."""
    return chunk or moment.group or max(1, count)


def encode(x: Tensor, length: int, bits: int, quantize: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Parts:
    """(N values, any shape) -> "code" ceil(N * bits / 8) uint8 and "scale" (G,) bfloat16.

    `quantize`: (G, L) -> code (G, L) uint8, scale (G,) bfloat16.
    """
    coded = [quantize(row_GL) for row_GL in split_rows(x.detach().reshape(-1), length)]
    code_N = torch.cat([x.new_zeros(0, dtype=torch.uint8), *(code.view(-1) for code, _ in coded)])
    scale_G = torch.cat([x.new_zeros(0, dtype=torch.bfloat16), *(scale for _, scale in coded)])
    return {"code": pack_codes(code_N, bits), "scale": scale_G}


def decode(parts: Parts, shape: Size, length: int, bits: int, dequantize: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Parts -> float32 of `shape`. Raises ValueError on wrong sizes or a scale that is negative or not finite.

    `dequantize`: code (G, L) uint8, scale (G,) bfloat16 -> (G, L) float32.
    """
    count, scale_G = shape.numel(), parts["scale"]
    if scale_G.shape != (-(-count // length),) or scale_G.dtype != torch.bfloat16:
        raise ValueError(f"scales {tuple(scale_G.shape)} do not fit {count} values in groups of {length}")
    if not (scale_G.isfinite().all() and (scale_G >= 0).all()):
        raise ValueError("a scale is negative or not finite")
    code_rows = split_rows(unpack_codes(parts["code"], bits, count), length)
    scale_rows = split_rows_of_levels(scale_G, count, length)
    rows = [dequantize(code_GL, scale) for code_GL, scale in zip(code_rows, scale_rows, strict=True)]
    return torch.cat([scale_G.new_zeros(0, dtype=torch.float32), *(row.view(-1) for row in rows)]).view(shape)
