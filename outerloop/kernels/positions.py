"""Kept positions <-> bytes in plain torch: the definition of the Rice and Elias-Fano codes, and their custom ops.

Positions are counted inside their chunk and ascend strictly in every row. Streams and numbers begin with their lowest
bit. With p a position and p' the one before it, a row of K positions below L becomes

    Rice         for every p, with the gap g = p - p' - 1 (p' = -1 at first):  g >> b zeros, a one, the b low bits of g
    Elias-Fano   for every p its l low bits;  then for every p: (p >> l) - (p' >> l) zeros (p' = 0 at first), a one;
                 then zeros, until all zeros of these are as many as (L - 1) >> l

Rice rows follow each other without borders in lanes of a fixed number of rows, so that lanes can be read in parallel:

    u16 bytes of every lane (low byte first), then the lanes; each begins at a byte and is filled up with zeros

Elias-Fano rows begin at a byte each and are filled up with zeros; `Rows` alone tells their sizes.

These bodies run wherever nothing faster is registered for the device. A decode op takes what P peers, one or more, sent
of one tensor and returns (position_PM, good_P): good is false for all that encode never gives, and then the positions
mean nothing.

M kept in all, C chunks, L values in one, K kept of one, R lanes, E kept of a lane, T bits, B bytes, P peers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from outerloop.kernels.operator import operator
from outerloop.kernels.reference import pack_codes, unpack_codes
from outerloop.kernels.rows import Rows

LANE = 1024
"""Kept values that a lane reaches: its u16 and its last, half empty byte are .02 bits a value."""


def gaps(position_M: Tensor, k: int) -> Tensor:
    """Positions skipped before each one in its row, (M,) int64; negative where a row does not ascend."""
    before_M = position_M.long().roll(1)
    before_M[::k] = -1
    return position_M - before_M - 1


def valid(position_M: Tensor, rows: Rows) -> Tensor:
    """Whether every row ascends strictly and stays inside its chunk: bool, no dimension."""
    whole_M, rest_M = position_M.split([rows.whole * rows.k, rows.kept_of_rest])
    return (gaps(position_M, rows.k) >= 0).all() & (whole_M < rows.chunk).all() & (rest_M < rows.rest).all()


def check_valid(good: Tensor | bool) -> None:
    """Raises ValueError unless good: an encoder was given what no selection gives."""
    if not good:
        raise ValueError("positions must ascend strictly inside their chunk")


# --- Rice ---


def rice_bits(rows: Rows) -> int:
    """b: the least with r^(2^b) <= (√5 - 1) / 2, where r = (chunk - k) / (chunk + 1).

    Random positions skip (chunk - k) / (k + 1) on average, as a geometric distribution of ratio r does; for that, one
    more low bit pays exactly while r^(2^b) is above the golden ratio (Kiely 2004). A division and products: no machine
    finds another b. 5 for 64 of 4096, 4 for 128, at most 14, 0 from 38 % kept on.
    """
    ratio, b = (rows.chunk - rows.k) / (rows.chunk + 1), 0
    while ratio > 0.6180339887498949:
        ratio, b = ratio * ratio, b + 1
    return b


def lane_rows(rows: Rows) -> int:
    """Rows in a lane: as many as it takes to keep 1024 values."""
    return -(-LANE // rows.k)


def lane_count(rows: Rows) -> int:
    """All lanes; the last one may have fewer rows."""
    return -(-rows.chunks // lane_rows(rows))


def rice_most_bytes(rows: Rows) -> int:
    """Bytes that no code of these rows exceeds: the zeros of a row are at most what it skips, shifted."""
    b = rice_bits(rows)
    zeros = rows.whole * ((rows.chunk - rows.k) >> b) + ((rows.rest - rows.kept_of_rest) >> b)
    return 3 * lane_count(rows) + (rows.kept * (b + 1) + zeros) // 8


def rice_least_bytes(rows: Rows) -> int:
    """Bytes that every code of these rows has: the sizes in front."""
    return 2 * lane_count(rows)


def rice_lane_bytes(byte_B: Tensor, rows: Rows) -> Tensor | None:
    """What the front says of the lanes, (R,) int64; None unless that is all the bytes, and no more than can be."""
    front = rice_least_bytes(rows)
    if not front <= byte_B.numel() <= rice_most_bytes(rows):
        return None
    pair_R2 = byte_B[:front].view(-1, 2).long()
    size_R = pair_R2[:, 0] + 256 * pair_R2[:, 1]
    return size_R if front + int(size_R.sum()) == byte_B.numel() else None


@operator()
def rice_encode(position_M: Tensor, count: int, chunk: int, k: int) -> Tensor:
    """(M,) int32 -> (B,) uint8. Raises ValueError on positions that are not valid."""
    rows = Rows(count, chunk, k)
    check_valid(valid(position_M, rows))
    gap_M, b, low_b = gaps(position_M, k), rice_bits(rows), upto(rice_bits(rows), position_M)
    start_M, size_R = rice_starts((gap_M >> b) + 1 + b, rows)
    one_M = start_M + (gap_M >> b)
    bit_T = position_M.new_zeros(8 * int(size_R.sum()), dtype=torch.uint8)
    bit_T[one_M] = 1
    bit_T[one_M[:, None] + 1 + low_b] = ((gap_M[:, None] >> low_b) & 1).to(torch.uint8)
    front_R2 = torch.stack([size_R & 255, size_R >> 8], dim=1).to(torch.uint8)
    return torch.cat([front_R2.view(-1), pack_codes(bit_T, 1)])


def rice_starts(length_M: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Bits of every code -> the bit that each begins at, (M,) int64, and the bytes of every lane, (R,) int64."""
    lanes, entries = lane_count(rows), lane_rows(rows) * rows.k
    length_RE = pad(length_M, (0, lanes * entries - rows.kept)).view(lanes, entries)
    size_R = (length_RE.sum(1) + 7) // 8
    start_RE = length_RE.cumsum(1) - length_RE + 8 * (size_R.cumsum(0) - size_R)[:, None]
    return start_RE.view(-1)[: rows.kept], size_R


@operator()
def rice_decode(bytes: list[Tensor], count: int, chunk: int, k: int) -> tuple[Tensor, Tensor]:
    """(B,) uint8 of P peers -> (P, M) int32 and whether the bytes of each were good, (P,)."""
    return each(lambda byte_B: rice_decode_one(byte_B, Rows(count, chunk, k)), bytes)


def rice_decode_one(byte_B: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """(B,) uint8 -> (M,) int32 and whether the bytes were good."""
    size_R = rice_lane_bytes(byte_B, rows)
    if size_R is None:
        return no_positions(byte_B, rows)
    gap_M, good = rice_gaps(byte_B[2 * len(size_R) :], size_R, rows)
    step_CK = pad(gap_M + 1, (0, -rows.kept % rows.k)).view(-1, rows.k)
    position_M = step_CK.cumsum(1).view(-1)[: rows.kept] - 1
    return position_M.int(), good & valid(position_M, rows)


def rice_gaps(byte_B: Tensor, size_R: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """The lanes -> (M,) int64 gaps, and whether all lanes ended in their last byte with zeros to its end."""
    b, entries, end_R = rice_bits(rows), lane_rows(rows) * rows.k, 8 * size_R.cumsum(0)
    bit_T = pad(unpack_codes(byte_B, 1, 8 * byte_B.numel()), (0, 2))
    one_T, next_T = rice_codes(bit_T, b)
    start_M = follow(next_T, end_R - 8 * size_R, entries).flatten()[: rows.kept]
    last_R = upto(len(size_R), byte_B).add(1).mul(entries).clamp(max=rows.kept) - 1
    read_R = next_T[start_M[last_R]]
    good_R = (read_R <= end_R) & (end_R < read_R + 8) & (end_R <= one_T[read_R])
    low_Mb = bit_T[(one_T[start_M][:, None] + 1 + upto(b, byte_B)).clamp(max=len(bit_T) - 1)]
    return ((one_T[start_M] - start_M) << b) + (low_Mb.long() << upto(b, byte_B)).sum(1), good_R.all()


def rice_codes(bit_T: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """For a code that began at each bit: its one, and where the next one begins; the last, extra bit when nowhere."""
    nowhere = len(bit_T) - 1
    one_T = torch.where(bit_T > 0, upto(len(bit_T), bit_T), nowhere).flip(0).cummin(0).values.flip(0)
    return one_T, (one_T + 1 + b).where(one_T + 1 + b < nowhere, nowhere)


def follow(next_T: Tensor, start_R: Tensor, entries: int) -> Tensor:
    """(R,) first bits -> (R, E): start, next[start], next[next[start]], ... by doubling: log2 E steps for all lanes."""
    start_RE = start_R[:, None]
    while start_RE.shape[1] < entries:
        start_RE = torch.cat([start_RE, next_T[start_RE]], dim=1)
        next_T = next_T[next_T]
    return start_RE[:, :entries]


# --- Elias-Fano ---


def elias_fano_bits(rows: Rows) -> int:
    """l = floor(log2(chunk / k))."""
    return (rows.chunk // rows.k).bit_length() - 1


def elias_fano_bytes(length: int, kept: int, low: int) -> int:
    """Bytes of a row that keeps `kept` of `length`."""
    return (kept * (low + 1) + ((length - 1) >> low) + 7) // 8


def blocks(rows: Rows) -> list[tuple[int, int, int]]:
    """(rows, length, kept) of the whole chunks and of the ragged one, those that there are."""
    both = [(rows.whole, rows.chunk, rows.k), (1, rows.rest, rows.kept_of_rest)]
    return [block for block in both if block[0] * block[1]]


def block_bytes(rows: Rows) -> list[int]:
    """Bytes of each block."""
    return [number * elias_fano_bytes(length, kept, elias_fano_bits(rows)) for number, length, kept in blocks(rows)]


@operator()
def elias_fano_encode(position_M: Tensor, count: int, chunk: int, k: int) -> Tensor:
    """(M,) int32 -> (B,) uint8. Raises ValueError on positions that are not valid."""
    rows = Rows(count, chunk, k)
    check_valid(valid(position_M, rows))
    cut = position_M.long().split([number * kept for number, _, kept in blocks(rows)])
    parts = zip(cut, blocks(rows), strict=True)
    done = [
        elias_fano_rows(part_M.view(-1, kept), length, elias_fano_bits(rows)) for part_M, (_, length, kept) in parts
    ]
    return torch.cat([position_M.new_zeros(0, dtype=torch.uint8), *done])


def elias_fano_rows(position_CK: Tensor, length: int, low: int) -> Tensor:
    """Rows of one shape -> their bytes, one behind the other."""
    number, kept = position_CK.shape
    low_l = upto(low, position_CK)
    bit_CT = position_CK.new_zeros(number, 8 * elias_fano_bytes(length, kept, low), dtype=torch.uint8)
    bit_CT[:, : kept * low] = ((position_CK[:, :, None] >> low_l) & 1).view(number, -1)
    one_CK = kept * low + (position_CK >> low) + upto(kept, position_CK)
    return pack_codes(bit_CT.scatter_(1, one_CK, 1).view(-1), 1)


@operator()
def elias_fano_decode(bytes: list[Tensor], count: int, chunk: int, k: int) -> tuple[Tensor, Tensor]:
    """(B,) uint8 of P peers -> (P, M) int32 and whether the bytes of each were good, (P,)."""
    return each(lambda byte_B: elias_fano_decode_one(byte_B, Rows(count, chunk, k)), bytes)


def elias_fano_decode_one(byte_B: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """(B,) uint8 -> (M,) int32 and whether the bytes were good."""
    if byte_B.numel() != sum(block_bytes(rows)):
        return no_positions(byte_B, rows)
    parts = zip(byte_B.split(block_bytes(rows)), blocks(rows), strict=True)
    read = [elias_fano_positions(part_B, *block, elias_fano_bits(rows)) for part_B, block in parts]
    position_M = torch.cat([byte_B.new_zeros(0, dtype=torch.int32), *(kept_M for kept_M, _ in read)])
    return position_M, torch.stack([valid(position_M, rows), *(ends for _, ends in read)]).all()


def elias_fano_positions(byte_B: Tensor, number: int, length: int, kept: int, low: int) -> tuple[Tensor, Tensor]:
    """Rows of one shape -> (C * K,) int32, and whether all have as many ones and zeros as they must."""
    bit_CT = unpack_codes(byte_B, 1, 8 * byte_B.numel()).view(number, -1)
    low_CT, high_CT = bit_CT[:, : kept * low], bit_CT[:, kept * low :]
    low_CK = (low_CT.reshape(number, kept, low).long() << upto(low, byte_B)).sum(2)
    one_CK = high_CT.argsort(dim=1, descending=True, stable=True)[:, :kept]
    position_CK = ((one_CK - upto(kept, byte_B)) << low) + low_CK
    return position_CK.view(-1).int(), (high_CT.sum(1) == kept).all()


# --- for both ---


def upto(count: int, like: Tensor) -> Tensor:
    """0, 1 .. count - 1 on the device of `like`."""
    return torch.arange(count, device=like.device)


def each(decode: Callable[[Tensor], tuple[Tensor, Tensor]], bytes_P: list[Tensor]) -> tuple[Tensor, Tensor]:
    """One peer's bytes after the other's: (P, M) int32 and whether the bytes of each were good, (P,)."""
    position, good = zip(*(decode(byte_B) for byte_B in bytes_P), strict=True)
    return torch.stack(position), torch.stack(good)


def no_positions(byte_B: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """What is decoded from bytes that are not even looked at."""
    return byte_B.new_zeros(rows.kept, dtype=torch.int32), byte_B.new_zeros((), dtype=torch.bool)


@rice_encode.fake
def _(position_M: Tensor, count: int, chunk: int, k: int) -> Tensor:
    return position_M.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.uint8)


@elias_fano_encode.fake
def _(position_M: Tensor, count: int, chunk: int, k: int) -> Tensor:
    return position_M.new_empty(sum(block_bytes(Rows(count, chunk, k))), dtype=torch.uint8)


@rice_decode.fake
@elias_fano_decode.fake
def _(bytes: list[Tensor], count: int, chunk: int, k: int) -> tuple[Tensor, Tensor]:
    peers, kept = len(bytes), Rows(count, chunk, k).kept
    return bytes[0].new_empty(peers, kept, dtype=torch.int32), bytes[0].new_empty(peers, dtype=torch.bool)
