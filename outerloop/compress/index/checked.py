"""What the codes share: bytes that are not theirs are refused before and after decoding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outerloop.kernels.rows import Rows


def decoded(decode: Callable[[Tensor, int, int, int], tuple[Tensor, Tensor]], byte_B: Tensor, rows: Rows) -> Tensor:
    """(B,) uint8 -> (M,) int32 by an op that says whether the bytes are good. Raises ValueError when they are not."""
    if byte_B.dtype != torch.uint8 or byte_B.dim() != 1:
        raise ValueError(f"positions as {byte_B.dtype} of shape {tuple(byte_B.shape)}, not as a row of bytes")
    position_M, good = decode(byte_B, rows.count, rows.chunk, rows.k)
    if not good:
        raise ValueError(
            f"{byte_B.numel()} bytes are no code of positions that ascend in chunks of {rows.chunk},"
            f" {rows.k} in each, {rows.kept} in all"
        )
    return position_M
