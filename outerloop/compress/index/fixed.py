"""Fixed-width code for kept positions, in plain torch: ceil(log2 chunk) bits each, 12 bits at chunk 4096."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outerloop.compress.index import decoded
from outerloop.kernels.positions import are_valid, check_valid, decode_each, no_positions
from outerloop.kernels.reference import pack_bits, packed_bytes, unpack_bits
from outerloop.kernels.select import Rows


class Fixed:
    """Fixed-width index: the bits of all positions, concatenated; the last byte is padded with zeros."""

    def encode(self, position_M: Tensor, rows: Rows) -> Tensor:
        """Encode M kept positions (int32) to bytes (uint8). Raises ValueError unless they ascend within each chunk."""
        check_valid(are_valid(position_M, rows))
        return pack_bits(position_M, (rows.chunk - 1).bit_length())

    def decode(self, bytes_P: Sequence[Tensor], rows: Rows) -> Tensor:
        """Decode the bytes of P peers to kept positions, (P, M) int32. Raises ValueError on invalid bytes."""
        return decoded(fixed_decode, bytes_P, rows)


def fixed_decode(bytes_P: list[Tensor], count: int, chunk: int, k: int) -> tuple[Tensor, Tensor]:
    """Decode the bytes of P peers to kept positions, (P, M) int32. Also return whether each peer's are valid, (P,)."""
    return decode_each(lambda byte_B: fixed_decode_one(byte_B, Rows(count, chunk, k)), bytes_P)


def fixed_decode_one(byte_B: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Decode the bytes of one peer to kept positions, (M,) int32. Also return whether the bytes are valid."""
    bits = (rows.chunk - 1).bit_length()
    if byte_B.numel() != packed_bytes(rows.kept, bits):
        return no_positions(byte_B, rows)
    position_M = unpack_bits(byte_B, bits, rows.kept)
    used = (rows.kept * bits - 1) % 8 + 1
    return position_M, are_valid(position_M, rows) & (byte_B[-1:] >> used == 0).all()
