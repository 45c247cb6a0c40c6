"""AXIS index: how the kept positions of a sparse payload are encoded. One code per file.

`decoded` contains the checks that all codes share: invalid bytes are rejected before or after decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from outerloop.kernels.select import Rows


def decoded(
    decode: Callable[[list[Tensor], int, int, int], tuple[Tensor, Tensor]], bytes_P: Sequence[Tensor], rows: Rows
) -> Tensor:
    """Decode the bytes of P peers to kept positions, (P, M) int32. Raises ValueError if any peer's bytes are invalid.

    `decode` is called with the bytes and the count, chunk and k of `rows`. It returns the positions, and whether each
    peer's bytes are valid.
    """
    for byte_B in bytes_P:
        if byte_B.dtype != torch.uint8 or byte_B.dim() != 1:
            raise ValueError(
                f"the encoded positions have dtype {byte_B.dtype} and shape {tuple(byte_B.shape)}, expected uint8 and"
                " one dimension"
            )
    position_PM, good_P = decode(list(bytes_P), rows.count, rows.chunk, rows.k)
    for byte_B, good in zip(bytes_P, good_P.tolist(), strict=True):
        if not good:
            raise ValueError(
                f"{byte_B.numel()} bytes are not a valid code of {rows.kept} ascending positions, {rows.k} in each full"
                f" chunk of {rows.chunk} values"
            )
    return position_PM


class Index(Protocol):
    """A binary code for the kept positions of every chunk.

    It must be canonical: equal positions give equal bytes, and different valid bytes decode to different positions.
    """

    def encode(self, position_M: Tensor, rows: Rows) -> Tensor:
        """Encode M kept positions (int32) to bytes (uint8). Raises ValueError unless they ascend within each chunk."""
        ...

    def decode(self, bytes_P: Sequence[Tensor], rows: Rows) -> Tensor:
        """Decode the bytes of P peers, (B,) uint8 each, to M kept positions per peer, (P, M) int32.

        Raises ValueError on bytes that `encode` never returns.
        """
        ...
