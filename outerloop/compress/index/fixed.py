"""Kept positions in ceil(log2 chunk) bits each: 12 at chunk 4096, however many are kept. In plain torch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outerloop.compress.index.checked import decoded
from outerloop.kernels.positions import check_valid, each, no_positions, valid
from outerloop.kernels.reference import pack_bits, packed_bytes, unpack_bits
from outerloop.kernels.rows import Rows


class Fixed:
    """All bits of every position, one behind the other; the last byte filled up with zeros."""

    def encode(self, position_M: Tensor, rows: Rows) -> Tensor:
        """(M,) int32 -> (B,) uint8. Raises ValueError on positions that do not ascend strictly inside their chunk."""
        check_valid(valid(position_M, rows))
        return pack_bits(position_M, (rows.chunk - 1).bit_length())

    def decode(self, bytes_P: Sequence[Tensor], rows: Rows) -> Tensor:
        """(B,) uint8 of P peers -> (P, M) int32. Raises ValueError on bytes that encode never gives."""
        return decoded(fixed_decode, bytes_P, rows)


def fixed_decode(bytes_P: list[Tensor], count: int, chunk: int, k: int) -> tuple[Tensor, Tensor]:
    """(B,) uint8 of P peers -> (P, M) int32 and whether the bytes are good, (P,)."""
    return each(lambda byte_B: fixed_decode_one(byte_B, Rows(count, chunk, k)), bytes_P)


def fixed_decode_one(byte_B: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """(B,) uint8 -> (M,) int32 and whether the bytes are good."""
    bits = (rows.chunk - 1).bit_length()
    if byte_B.numel() != packed_bytes(rows.kept, bits):
        return no_positions(byte_B, rows)
    position_M = unpack_bits(byte_B, bits, rows.kept)
    used = (rows.kept * bits - 1) % 8 + 1
    return position_M, valid(position_M, rows) & (byte_B[-1:] >> used == 0).all()
