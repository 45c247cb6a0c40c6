"""Reference implementation, in plain torch, of the Rice code for kept positions (positions.py).

With p a position of a row and p' the position before it (-1 at first), a row is encoded as

    for every p, with the gap g = p - p' - 1:  g >> b zeros, a one, the b low bits of g

A lane is a fixed number of rows, concatenated without separators. Lanes can be read in parallel, because the stream
begins with their sizes:

    size in bytes of every lane (u16, low byte first), then the lanes

Each lane starts at a byte boundary and is padded with zeros.

Sizes: M kept values in total, K kept values per chunk, R lanes, E kept values per lane, T bits, B bytes, P peers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from outerloop.kernels.operator import operator
from outerloop.kernels.positions import are_valid, check_valid, decode_each, empty_decoded, gaps, no_positions, upto
from outerloop.kernels.reference import pack_codes, unpack_codes
from outerloop.kernels.select import Rows

LANE = 1024
"""Minimum number of kept values per lane. The lane's size (u16) and padding then take about 0.02 bits per value."""


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
    """Return, for each bit of the stream, where a code that starts at this bit has its first 1, and where it ends.

    Both are indices of bits, and the end is the index of the next code's first bit. An index outside the stream is
    replaced by the index of the last bit, which is padding. b: low bits per code.
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


@rice_encode.fake
def _(position_M: Tensor, count: int, chunk: int, k: int) -> Tensor:
    return position_M.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.uint8)


rice_decode.fake(empty_decoded)
