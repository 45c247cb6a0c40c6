"""Reference implementation, in plain torch, of the Elias-Fano code for kept positions (positions.py).

With p a position of a row and p' the position before it (0 at first), a row is encoded as

    for every p its l low bits;  then for every p: (p >> l) - (p' >> l) zeros, a one;  then zeros, until the high parts
    contain (L - 1) >> l zeros in total

Each row starts at a byte boundary and is padded with zeros. Its size depends on `Rows` only.

Sizes: M kept values in total, C chunks, L values per chunk, K of them kept, T bits, B bytes, P peers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outerloop.kernels.operator import operator
from outerloop.kernels.positions import are_valid, check_valid, decode_each, empty_decoded, no_positions, upto
from outerloop.kernels.reference import pack_codes, unpack_codes
from outerloop.kernels.select import Rows


def elias_fano_bits(rows: Rows) -> int:
    """Return l, the number of low bits of a position: floor(log2(chunk / k))."""
    return (rows.chunk // rows.k).bit_length() - 1


def elias_fano_bytes(length: int, kept: int, low: int) -> int:
    """Return the size in bytes of a row that keeps `kept` of `length` values, with `low` low bits per position."""
    return (kept * (low + 1) + ((length - 1) >> low) + 7) // 8


def blocks(rows: Rows) -> list[tuple[int, int, int]]:
    """Divide the rows into two blocks: the full chunks, and the shorter last chunk. An empty block is left out.

    Returns (number of rows, chunk length, kept positions per row) for each block.
    """
    both = [(rows.whole, rows.chunk, rows.k), (1, rows.rest, rows.kept_of_rest)]
    return [block for block in both if block[0] * block[1]]


def block_bytes(rows: Rows) -> list[int]:
    """Return the size in bytes of each of the `blocks`, encoded as Elias-Fano."""
    return [number * elias_fano_bytes(length, kept, elias_fano_bits(rows)) for number, length, kept in blocks(rows)]


@operator()
def elias_fano_encode(position_M: Tensor, count: int, chunk: int, k: int) -> Tensor:
    """Encode kept positions (M,) int32 as Elias-Fano bytes (B,) uint8. Raises ValueError if a position is invalid."""
    rows = Rows(count, chunk, k)
    check_valid(are_valid(position_M, rows))
    cut = position_M.long().split([number * kept for number, _, kept in blocks(rows)])
    parts = zip(cut, blocks(rows), strict=True)
    done = [
        elias_fano_rows(part_M.view(-1, kept), length, elias_fano_bits(rows)) for part_M, (_, length, kept) in parts
    ]
    return torch.cat([position_M.new_zeros(0, dtype=torch.uint8), *done])


def elias_fano_rows(position_CK: Tensor, length: int, low: int) -> Tensor:
    """Encode the kept positions of C rows of equal length, (C, K), as the concatenated bytes of all rows."""
    number, kept = position_CK.shape
    low_l = upto(low, position_CK)
    bit_CT = position_CK.new_zeros(number, 8 * elias_fano_bytes(length, kept, low), dtype=torch.uint8)
    bit_CT[:, : kept * low] = ((position_CK[:, :, None] >> low_l) & 1).view(number, -1)
    one_CK = kept * low + (position_CK >> low) + upto(kept, position_CK)
    return pack_codes(bit_CT.scatter_(1, one_CK, 1).view(-1), 1)


@operator()
def elias_fano_decode(bytes: list[Tensor], count: int, chunk: int, k: int) -> tuple[Tensor, Tensor]:
    """Decode the Elias-Fano bytes of P peers to positions, (P, M) int32.

    Also return whether each peer's bytes are valid, (P,) bool.
    """
    return decode_each(lambda byte_B: elias_fano_decode_one(byte_B, Rows(count, chunk, k)), bytes)


def elias_fano_decode_one(byte_B: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Decode Elias-Fano bytes (B,) uint8 to positions (M,) int32. Also return whether the bytes are valid."""
    if byte_B.numel() != sum(block_bytes(rows)):
        return no_positions(byte_B, rows)
    parts = zip(byte_B.split(block_bytes(rows)), blocks(rows), strict=True)
    read = [elias_fano_positions(part_B, *block, elias_fano_bits(rows)) for part_B, block in parts]
    position_M = torch.cat([byte_B.new_zeros(0, dtype=torch.int32), *(kept_M for kept_M, _ in read)])
    return position_M, torch.stack([are_valid(position_M, rows), *(ends for _, ends in read)]).all()


def elias_fano_positions(byte_B: Tensor, number: int, length: int, kept: int, low: int) -> tuple[Tensor, Tensor]:
    """Decode `number` rows of equal length to positions, (number * kept,) int32.

    Also return whether every row has the right number of 1 bits.
    """
    bit_CT = unpack_codes(byte_B, 1, 8 * byte_B.numel()).view(number, -1)
    low_CT, high_CT = bit_CT[:, : kept * low], bit_CT[:, kept * low :]
    low_CK = (low_CT.reshape(number, kept, low).long() << upto(low, byte_B)).sum(2)
    one_CK = high_CT.argsort(dim=1, descending=True, stable=True)[:, :kept]
    position_CK = ((one_CK - upto(kept, byte_B)) << low) + low_CK
    return position_CK.view(-1).int(), (high_CT.sum(1) == kept).all()


@elias_fano_encode.fake
def _(position_M: Tensor, count: int, chunk: int, k: int) -> Tensor:
    return position_M.new_empty(sum(block_bytes(Rows(count, chunk, k))), dtype=torch.uint8)


elias_fano_decode.fake(empty_decoded)
