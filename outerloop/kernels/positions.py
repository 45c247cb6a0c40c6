"""Reference implementation, in plain torch, of the Rice and Elias-Fano codes for kept positions.

A row consists of the K kept positions of one chunk of L values. They are relative to the chunk and ascend strictly.
Streams and numbers start with their lowest bit. With p a position of a row and p' the position before it, the row is
encoded as

    Rice         for every p, with the gap g = p - p' - 1 (p' = -1 at first):  g >> b zeros, a one, the b low bits of g
    Elias-Fano   for every p its l low bits;  then for every p: (p >> l) - (p' >> l) zeros (p' = 0 at first), a one;
                 then zeros, until the high parts contain (L - 1) >> l zeros in total

A Rice lane is a fixed number of rows, concatenated without separators. Lanes can be read in parallel, because the
stream begins with their sizes:

    size in bytes of every lane (u16, low byte first), then the lanes

Each Rice lane and each Elias-Fano row starts at a byte boundary and is padded with zeros. The size of an Elias-Fano row
depends on `Rows` only.

The functions in this file run if no faster kernel is registered for the device. A decode operator takes the bytes of
P >= 1 peers for one tensor and returns (position_PM, good_P). good[p] is false for bytes that the encoder never
returns; the positions of peer p are then meaningless.

Sizes: M kept values in total, C chunks, L values per chunk, K of them kept, R lanes, E kept values per lane, T bits,
B bytes, P peers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from outerloop.kernels.operator import operator
from outerloop.kernels.reference import pack_codes, unpack_codes
from outerloop.kernels.select import Rows

LANE = 1024
"""Minimum number of kept values per lane. The lane's size (u16) and padding then take about 0.02 bits per value."""


def gaps(position_M: Tensor, k: int) -> Tensor:
    """Return the number of positions skipped before each kept position, in rows of k: (M,) int64.

    The number is negative where a row does not ascend strictly.
    """
    before_M = position_M.long().roll(1)
    before_M[::k] = -1
    return position_M - before_M - 1


def are_valid(position_M: Tensor, rows: Rows) -> Tensor:
    """Return whether the positions of every row ascend strictly and stay inside their chunk, as a 0-d bool tensor."""
    whole_M, rest_M = position_M.split([rows.whole * rows.k, rows.kept_of_rest])
    return (gaps(position_M, rows.k) >= 0).all() & (whole_M < rows.chunk).all() & (rest_M < rows.rest).all()


def check_valid(good: Tensor | bool) -> None:
    """Raise ValueError if `good` is false, which means that an encoder received invalid positions."""
    if not good:
        raise ValueError("positions must ascend strictly inside their chunk")


# --- Rice ---


def rice_bits(rows: Rows) -> int:
    """Return b, the number of low bits in a Rice code.

    It is the smallest b with r^(2^b) <= (√5 - 1) / 2, where r = (chunk - k) / (chunk + 1). Gaps between random
    positions average (chunk - k) / (k + 1), as in a geometric distribution with ratio r. For this distribution, another
    low bit shortens the codes if and only if r^(2^b) > (√5 - 1) / 2 (Kiely 2004). The computation uses only one
    division and multiplications, so all machines get the same b: 5 if 64 of 4096 positions are kept, 4 if 128 of 4096
    are kept, 0 if 38.2 % or more are kept; never above 14.
    """
    ratio, b = (rows.chunk - rows.k) / (rows.chunk + 1), 0
    while ratio > 0.6180339887498949:
        ratio, b = ratio * ratio, b + 1
    return b


def lane_rows(rows: Rows) -> int:
    """Return the number of rows per lane: the smallest number that contains at least LANE kept values."""
    return -(-LANE // rows.k)


def lane_count(rows: Rows) -> int:
    """Return the number of lanes; the last lane may have fewer rows."""
    return -(-rows.chunks // lane_rows(rows))


def rice_max_bytes(rows: Rows) -> int:
    """Return the maximum size in bytes of a Rice-encoded tensor. A row has at most (skipped positions) >> b zeros."""
    b = rice_bits(rows)
    zeros = rows.whole * ((rows.chunk - rows.k) >> b) + ((rows.rest - rows.kept_of_rest) >> b)
    return 3 * lane_count(rows) + (rows.kept * (b + 1) + zeros) // 8


def rice_min_bytes(rows: Rows) -> int:
    """Return a lower bound on the size in bytes of a Rice-encoded tensor: the bytes that the lane sizes take."""
    return 2 * lane_count(rows)


def rice_lane_bytes(byte_B: Tensor, rows: Rows) -> Tensor | None:
    """Read the sizes of R lanes from the beginning of `byte_B`: (R,) int64, in bytes.

    Returns None if the length of `byte_B` is impossible for these rows, or does not match the lane sizes.
    """
    min_bytes = rice_min_bytes(rows)
    if not min_bytes <= byte_B.numel() <= rice_max_bytes(rows):
        return None
    pair_R2 = byte_B[:min_bytes].view(-1, 2).long()
    size_R = pair_R2[:, 0] + 256 * pair_R2[:, 1]
    return size_R if min_bytes + int(size_R.sum()) == byte_B.numel() else None


@operator()
def rice_encode(position_M: Tensor, count: int, chunk: int, k: int) -> Tensor:
    """Encode kept positions (M,) int32 as Rice-coded bytes (B,) uint8. Raises ValueError if a position is invalid."""
    rows = Rows(count, chunk, k)
    check_valid(are_valid(position_M, rows))
    gap_M, b, low_b = gaps(position_M, k), rice_bits(rows), upto(rice_bits(rows), position_M)
    start_M, size_R = rice_starts((gap_M >> b) + 1 + b, rows)
    one_M = start_M + (gap_M >> b)
    bit_T = position_M.new_zeros(8 * int(size_R.sum()), dtype=torch.uint8)
    bit_T[one_M] = 1
    bit_T[one_M[:, None] + 1 + low_b] = ((gap_M[:, None] >> low_b) & 1).to(torch.uint8)
    front_R2 = torch.stack([size_R & 255, size_R >> 8], dim=1).to(torch.uint8)
    return torch.cat([front_R2.view(-1), pack_codes(bit_T, 1)])


def rice_starts(length_M: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Convert the lengths of M codes in bits to the index of each code's first bit, and lane sizes in bytes, int64."""
    lanes, entries = lane_count(rows), lane_rows(rows) * rows.k
    length_RE = pad(length_M, (0, lanes * entries - rows.kept)).view(lanes, entries)
    size_R = (length_RE.sum(1) + 7) // 8
    start_RE = length_RE.cumsum(1) - length_RE + 8 * (size_R.cumsum(0) - size_R)[:, None]
    return start_RE.view(-1)[: rows.kept], size_R


@operator()
def rice_decode(bytes: list[Tensor], count: int, chunk: int, k: int) -> tuple[Tensor, Tensor]:
    """Decode the Rice-coded bytes of P peers to positions, (P, M) int32.

    Also return whether each peer's bytes are valid, (P,) bool.
    """
    return decode_each(lambda byte_B: rice_decode_one(byte_B, Rows(count, chunk, k)), bytes)


def rice_decode_one(byte_B: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Decode Rice-coded bytes (B,) uint8 to positions (M,) int32. Also return whether the bytes are valid."""
    size_R = rice_lane_bytes(byte_B, rows)
    if size_R is None:
        return no_positions(byte_B, rows)
    gap_M, good = rice_gaps(byte_B[2 * len(size_R) :], size_R, rows)
    step_CK = pad(gap_M + 1, (0, -rows.kept % rows.k)).view(-1, rows.k)
    position_M = step_CK.cumsum(1).view(-1)[: rows.kept] - 1
    return position_M.int(), good & are_valid(position_M, rows)


def rice_gaps(byte_B: Tensor, size_R: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Decode the lanes to gaps, (M,) int64, given the lane sizes in bytes.

    Also return whether, in every lane, the codes end in the last byte and only zeros follow them.
    """
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
    """For each bit, assume that a code starts there. Return the index of its first 1 bit, and that of the next code.

    An index outside the stream is replaced by the index of the last bit, which is padding. b: low bits per code.
    """
    nowhere = len(bit_T) - 1
    one_T = torch.where(bit_T > 0, upto(len(bit_T), bit_T), nowhere).flip(0).cummin(0).values.flip(0)
    return one_T, (one_T + 1 + b).where(one_T + 1 + b < nowhere, nowhere)


def follow(next_T: Tensor, start_R: Tensor, entries: int) -> Tensor:
    """For each of R lanes, return start, next[start], next[next[start]], ...: E = `entries` indices, (R, E).

    Takes log2 E steps, each of which doubles the number of indices.
    """
    start_RE = start_R[:, None]
    while start_RE.shape[1] < entries:
        start_RE = torch.cat([start_RE, next_T[start_RE]], dim=1)
        next_T = next_T[next_T]
    return start_RE[:, :entries]


# --- Elias-Fano ---


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


# --- for both codes ---


def upto(count: int, like: Tensor) -> Tensor:
    """Return the integers 0 .. count - 1 as a tensor on the device of `like`."""
    return torch.arange(count, device=like.device)


def decode_each(decode: Callable[[Tensor], tuple[Tensor, Tensor]], bytes_P: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Call `decode` for the bytes of each of P peers. Return stacked positions (P, M) int32 and validity (P,) bool."""
    position, good = zip(*(decode(byte_B) for byte_B in bytes_P), strict=True)
    return torch.stack(position), torch.stack(good)


def no_positions(byte_B: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return zeros and False: the result for bytes that are rejected without decoding."""
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
