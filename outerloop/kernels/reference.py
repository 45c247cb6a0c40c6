"""Selection, quantization and packing in plain torch: the reference that every faster kernel must match bit for bit.

Sizes: C chunks, L values per chunk, K of them kept, M values in total, G groups.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def topk_rows(x_CL: Tensor, k: int) -> Tensor:
    """Return the positions of the k largest magnitudes in each row, ascending. Ties go to the lowest position.

    (C, L) float -> (C, k) int64. `torch.topk` does not define the order of ties, so only its k-th magnitude is used.
    All larger magnitudes are kept, then those equal to it, from the left, until there are k. Magnitudes are compared as
    integers: the bits of a float32 without its sign. The order is the same, with NaN above infinity.
    """
    size_CL = x_CL.float().abs().view(torch.int32)
    kth_C1 = size_CL.topk(k, dim=1).values[:, -1:]
    above_CL = size_CL > kth_C1
    equal_CL = size_CL == kth_C1
    room_C1 = k - above_CL.sum(1, keepdim=True)
    kept_CL = above_CL | (equal_CL & (equal_CL.cumsum(1) <= room_C1))
    return kept_CL.nonzero()[:, 1].view(-1, k)


def mean_split(x_GL: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize to two bits per value and two magnitudes per row: (G, L) -> code (G, L) uint8, level (G, 2) bfloat16.

    code = 2 * (x < 0) + (|x| > mean of |x|). level = (mean of the |x| whose code has lower bit 0, mean of the others).
    Means are computed in float64, so that no float32 input overflows and the order of summation does not matter.
    If no |x| of a row is above the row's mean (all are equal), both levels are the same.
    """
    size_GL = x_GL.abs().double()
    high_GL = size_GL > size_GL.mean(1, keepdim=True)
    n_high_G = high_GL.sum(1)
    sum_high_G = torch.where(high_GL, size_GL, 0.0).sum(1)
    low_G = (size_GL.sum(1) - sum_high_G) / (x_GL.shape[1] - n_high_G)
    high_G = torch.where(n_high_G > 0, sum_high_G / n_high_G.clamp(min=1), low_G)
    code_GL = 2 * (x_GL < 0).to(torch.uint8) + high_GL.to(torch.uint8)
    largest = torch.finfo(torch.bfloat16).max
    return code_GL, torch.stack([low_G, high_G], dim=1).clamp(max=largest).to(torch.bfloat16)


def mean_split_decode(code_GL: Tensor, level_G2: Tensor) -> Tensor:
    """Decode the codes of `mean_split`: code (G, L) uint8, level (G, 2) -> (G, L) float32."""
    size_GL = level_G2.float().gather(1, (code_GL & 1).long())
    return torch.where(code_GL >= 2, -size_GL, size_GL)


def pack_bits(value_M: Tensor, bits: int) -> Tensor:
    """Pack M integers below 2**bits into ceil(M * bits / 8) bytes, uint8. The first value is in the lowest bits."""
    place = torch.arange(bits, device=value_M.device)
    bit = ((value_M.view(-1, 1).int() >> place) & 1).to(torch.uint8).view(-1)
    byte_B8 = torch.nn.functional.pad(bit, (0, -bit.numel() % 8)).view(-1, 8)
    return (byte_B8 << torch.arange(8, dtype=torch.uint8, device=bit.device)).sum(1, dtype=torch.uint8)


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """Unpack the bytes of `pack_bits` to (count,) int32. Raises ValueError if the number of bytes is wrong."""
    if packed.dtype != torch.uint8 or packed.numel() != packed_bytes(count, bits):
        raise ValueError(f"{packed.numel()} bytes cannot hold {count} values of {bits} bits")
    eight = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bit = ((packed.view(-1, 1) >> eight) & 1).view(-1)[: count * bits].view(count, bits)
    return (bit.int() << torch.arange(bits, device=packed.device)).sum(1, dtype=torch.int32)


def packed_bytes(count: int, bits: int) -> int:
    """Return the number of bytes that `pack_bits` needs for `count` values of `bits` bits."""
    return (count * bits + 7) // 8


def pack_codes(code_N: Tensor, bits: int) -> Tensor:
    """Pack codes of 1, 2, 4 or 8 bits into the same bytes as `pack_bits`, without expanding codes to single bits."""
    per_byte = 8 // bits
    code_B = torch.nn.functional.pad(code_N.to(torch.uint8), (0, -code_N.numel() % per_byte)).view(-1, per_byte)
    return (code_B << code_places(bits, code_N.device)).sum(1, dtype=torch.uint8)


def unpack_codes(packed: Tensor, bits: int, count: int) -> Tensor:
    """Unpack the bytes of `pack_codes` to (count,) uint8. Raises ValueError if `pack_codes` never returns them."""
    check_codes(packed, bits, count)
    code_B = (packed.view(-1, 1) >> code_places(bits, packed.device)) & (2**bits - 1)
    return code_B.view(-1)[:count]


def check_codes(packed: Tensor, bits: int, count: int) -> None:
    """Raise ValueError unless `packed` is a vector of as many bytes as `count` codes need, padded with zeros."""
    if packed.dtype != torch.uint8 or packed.shape != (packed_bytes(count, bits),):
        raise ValueError(f"{packed.numel()} bytes cannot hold {count} codes of {bits} bits")
    if (used := count * bits % 8) and int(packed[-1]) >> used:
        raise ValueError(f"the last of {packed.numel()} bytes is not padded with zeros")


def code_places(bits: int, device: torch.device) -> Tensor:
    """Return the index of each code's first bit within a byte."""
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)


def pack_gaps(position_M: Tensor, count: int) -> Tensor:
    """Encode ascending positions below `count` as gaps, uint8. `count` is appended as a position to detect truncation.

    A gap g is the number of positions skipped before a position. It is encoded as g // 255 bytes with the value 255,
    then one byte with the value g % 255.
    """
    end_1 = position_M.new_tensor([count])
    gap_M = torch.cat([position_M, end_1]).diff(prepend=position_M.new_tensor([-1])) - 1
    last_M = (gap_M // 255 + 1).cumsum(0) - 1
    byte_B = torch.full((int(last_M[-1]) + 1,), 255, dtype=torch.uint8, device=position_M.device)
    byte_B[last_M] = (gap_M % 255).to(torch.uint8)
    return byte_B


def unpack_gaps(byte_B: Tensor, count: int, at_most: int) -> Tensor:
    """Decode the gaps of `pack_gaps` to positions, (M,) int64.

    Raises ValueError unless M <= at_most and the last gap ends at `count`.
    """
    if byte_B.dtype != torch.uint8 or byte_B.dim() != 1 or not 1 <= byte_B.numel() <= at_most + 1 + count // 255:
        raise ValueError(f"{byte_B.numel()} bytes cannot encode the gaps of at most {at_most} positions below {count}")
    last_B = byte_B != 255
    position_M = byte_B.cumsum(0, dtype=torch.int64)[last_B] + torch.arange(int(last_B.sum()), device=byte_B.device)
    if not last_B[-1] or position_M[-1] != count or position_M.numel() > at_most + 1:
        raise ValueError(f"the gaps do not end at {count}, or there are more than {at_most} positions")
    return position_M[:-1]


def to_scale(size_G: Tensor) -> Tensor:
    """Convert magnitudes to bfloat16, clamped to the largest finite bfloat16 value."""
    return size_G.clamp(max=torch.finfo(torch.bfloat16).max).to(torch.bfloat16)


def nonzero_scale(scale_G: Tensor) -> Tensor:
    """Convert scales to divisors: (G,) bfloat16 -> (G, 1) float32.

    A scale of 0 becomes 1, so that the tiny values of its group get code 0.
    """
    scale_G1 = scale_G.float()[:, None]
    return torch.where(scale_G1 > 0, scale_G1, 1.0)


def uniform_rows(x_GL: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Quantize to the nearest of 2^bits - 1 evenly spaced levels: (G, L) -> code (G, L) uint8, scale (G,) bfloat16.

    top = 2^(bits-1) - 1;  scale = max |x| / top;  code = top + round(x / scale), half to even, within 0 .. 2 top
    """
    top = 2 ** (bits - 1) - 1
    scale_G = to_scale(x_GL.abs().amax(1) / top)
    code_GL = (x_GL / nonzero_scale(scale_G)).round().clamp(-top, top) + top
    return code_GL.to(torch.uint8), scale_G


def uniform_rows_decode(code_GL: Tensor, scale_G: Tensor, bits: int) -> Tensor:
    """Decode the codes of `uniform_rows` to (G, L) float32.

    Raises ValueError if a code is 2^bits - 1, the only code without a level.
    """
    top = 2 ** (bits - 1) - 1
    if (code_GL > 2 * top).any():
        raise ValueError(f"a code is above {2 * top}")
    return uniform_levels(code_GL, scale_G, bits)


def uniform_levels(code_GL: Tensor, scale_G: Tensor, bits: int) -> Tensor:
    """Decode the codes of `uniform_rows` without checking them: (code - top) * scale in float32, clamped to be finite.

    top = 2^(bits-1) - 1
    """
    top = 2 ** (bits - 1) - 1
    largest = torch.finfo(torch.float32).max
    return ((code_GL.float() - top) * scale_G.float()[:, None]).clamp(-largest, largest)


def fp4_rows(x_GL: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize to the nearest of 0 and ± scale * 2^(e - 7), e = 1 .. 7.

    (G, L) -> code (G, L) uint8, scale (G,) bfloat16.

    code = 8 * (x < 0) + e, with e = 0 for the level 0; scale = max |x|. Ties go to the smaller level.
    """
    middles = [2.0**-7, *(1.5 * 2.0**e for e in range(-6, 0))]
    middle_7 = torch.tensor(middles, dtype=torch.float32, device=x_GL.device)
    scale_G = to_scale(x_GL.abs().amax(1))
    exponent_GL = torch.bucketize(x_GL.abs().float() / nonzero_scale(scale_G), middle_7, out_int32=True)
    return (exponent_GL + 8 * ((x_GL < 0) & (exponent_GL > 0))).to(torch.uint8), scale_G


def fp4_rows_decode(code_GL: Tensor, scale_G: Tensor) -> Tensor:
    """Decode the codes of `fp4_rows`: code (G, L) uint8, scale (G,) bfloat16 -> (G, L) float32.

    Raises ValueError if a code is 8, which would be the level -0.
    """
    if (code_GL == 8).any():
        raise ValueError("a code is 8, which has no level")
    sizes = [0.0, *(math.ldexp(1.0, e) for e in range(-6, 1))]
    size_8 = torch.tensor(sizes, dtype=torch.float32, device=code_GL.device)
    level_16 = torch.cat([size_8, -size_8])
    return level_16[code_GL.long()] * scale_G.float()[:, None]


def sign_rows(x_GL: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize to signs and a mean magnitude per row: (G, L) -> code (G, L) uint8, 1 if x < 0; scale (G,) bfloat16."""
    return (x_GL < 0).to(torch.uint8), to_scale(x_GL.abs().double().mean(1))


def sign_rows_decode(code_GL: Tensor, scale_G: Tensor) -> Tensor:
    """Decode the codes of `sign_rows` to ± scale, (G, L) float32."""
    scale_G1 = scale_G.float()[:, None]
    return torch.where(code_GL > 0, -scale_G1, scale_G1)
