"""The specification of the wire format suffices to read payloads: a decoder written from it, without this package.

`Decoder` follows docs/reference/protocols/wire.md and uses struct, numpy and xxhash only. It must decode payloads of
the package's compressors to the same bits.
"""

import struct
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from hydra.utils import instantiate

from outerloop import wire
from outerloop.config import load
from outerloop.types import CodecContext
from tests.support.forged_payloads import Draft, Section, apart

PAGE = Path(__file__).parents[2] / "docs/reference/protocols/wire.md"
SHAPES = {"model.0.weight": (5, 1031), "model.0.bias": (31,), "scale": (), "empty": (0, 4)}
FORMATS = {0: "<u1", 1: "<f4", 2: "<u2", 3: "<f2", 4: "<f8"}
PEER = "000-12D3KooWpeer"


class Decoder:
    """A reader of one payload, as the page describes it. `shapes`: the schema."""

    def __init__(self, payload: bytes, shapes: dict[str, tuple[int, ...]]) -> None:
        self.data, self.at = payload, 0
        assert struct.unpack("<Q", payload[-8:])[0] == xxhash.xxh3_64_intdigest(payload[:-8])
        magic, version, self.round, self.fragment, self.samples, schema, self.slow = self.take("<4sBIHQQQ")
        assert (magic, version) == (b"OUTL", 1)
        assert schema == xxhash.xxh3_64_intdigest(str(list(shapes.items())).encode())
        self.peer = self.text()
        names = [self.text() for _ in range(self.take("<B")[0])]
        assert self.take("<I")[0] == len(shapes)
        tables = [[self.entry(names) for _ in range(self.take("<B")[0])] for _ in shapes]
        assert names == list(dict.fromkeys(name for table in tables for name, *_ in table))
        assert all(len(table) == len({name for name, *_ in table}) for table in tables)
        self.parts = {
            name: {part: self.section(*what) for part, *what in table}
            for name, table in zip(shapes, tables, strict=True)
        }
        assert self.at == len(payload) - 8

    def take(self, layout: str) -> tuple:
        self.at += struct.calcsize(layout)
        return struct.unpack_from(layout, self.data, self.at - struct.calcsize(layout))

    def text(self) -> str:
        (length,) = self.take("<B")
        return self.take(f"<{length}s")[0].decode()

    def entry(self, names: list[str]) -> tuple[str, int, tuple[int, ...]]:
        name, dtype, dims = self.take("<BBB")
        return names[name], dtype, self.take(f"<{dims}I")

    def section(self, dtype: int, shape: tuple[int, ...]) -> np.ndarray:
        values = np.frombuffer(self.data, FORMATS[dtype], prod(shape), self.at).reshape(shape)
        self.at += values.nbytes
        return bfloat16(values) if dtype == 2 else values


def bfloat16(bits: np.ndarray) -> np.ndarray:
    """Return bfloat16 values as float32: their bits are its upper half."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def codes(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    assert packed.shape == (-(-count * bits // 8),)
    code = ((packed[:, None] >> np.arange(0, 8, bits)) & (2**bits - 1)).reshape(-1).astype(int)
    assert not code[count:].any(), "the padding is not zero"
    return code[:count]


def sizes(parts: dict, count: int, length: int, name: str) -> np.ndarray:
    """Return the scale or the levels of each value's group; `code` comes first."""
    assert list(parts) == ["code", name] and len(parts[name]) == -(-count // length)
    assert np.isfinite(parts[name]).all() and not np.signbit(parts[name]).any()
    return parts[name][groups(count, length)]


def groups(count: int, length: int) -> np.ndarray:
    """Return the group of each value."""
    return np.arange(count) // length


def two_bit(parts: dict, count: int, length: int) -> np.ndarray:
    code = codes(parts["code"], 2, count)
    size = sizes(parts, count, length, "level")[np.arange(count), code % 2]
    return np.where(code >= 2, -size, size)


def uniform(bits: int):
    def decode(parts: dict, count: int, length: int) -> np.ndarray:
        top = 2 ** (bits - 1) - 1
        code = codes(parts["code"], bits, count)
        assert (code <= 2 * top).all()
        return (code - top).astype(np.float32) * sizes(parts, count, length, "scale")

    return decode


def fp4(parts: dict, count: int, length: int) -> np.ndarray:
    code = codes(parts["code"], 4, count)
    assert not (code == 8).any()
    size = np.where(code % 8 > 0, 2.0 ** (code % 8 - 7), 0).astype(np.float32)
    return np.where(code >= 8, -size, size) * sizes(parts, count, length, "scale")


def sign(parts: dict, count: int, length: int) -> np.ndarray:
    size = sizes(parts, count, length, "scale")
    return np.where(codes(parts["code"], 1, count) == 1, -size, size)


def sigma_bins(parts: dict, count: int, length: int) -> np.ndarray:
    assert list(parts) == ["code", "level"] and parts["level"].shape == (4,)
    return parts["level"][codes(parts["code"], 2, count)]


def value(parts: dict, count: int, length: int) -> np.ndarray:
    assert list(parts) == ["value"] and parts["value"].shape == (count,)
    return parts["value"].astype(np.float32)


def chunks(count: int, chunk: int, k: int) -> list[tuple[int, int, int]]:
    """Return (start, length, kept) of each chunk."""
    lengths = [min(chunk, count - start) for start in range(0, count, chunk)]
    return [(i * chunk, n, -(-k * n // chunk)) for i, n in enumerate(lengths)]


class Bits:
    """A bit stream that starts with the lowest bit of the first byte."""

    def __init__(self, data: np.ndarray) -> None:
        self.bits, self.at = np.unpackbits(data, bitorder="little").tolist(), 0

    def number(self, width: int) -> int:
        self.at += width
        return sum(bit << i for i, bit in enumerate(self.bits[self.at - width : self.at]))

    def zeros(self) -> int:
        """Return the number of zeros before the next one, and skip them and the one."""
        start, self.at = self.at, self.bits.index(1, self.at) + 1
        return self.at - start - 1


def rice(index: np.ndarray, count: int, chunk: int, k: int) -> list[int]:
    ratio, b = (chunk - k) / (chunk + 1), 0
    while ratio > 0.6180339887498949:
        ratio, b = ratio * ratio, b + 1
    rows, per_lane = chunks(count, chunk, k), -(-1024 // k)
    lanes = [rows[i : i + per_lane] for i in range(0, len(rows), per_lane)]
    sizes = index[: 2 * len(lanes)].view("<u2").tolist()
    at, positions = 2 * len(lanes), []
    for size, lane in zip(sizes, lanes, strict=True):
        stream = Bits(index[at : at + size])
        at += size
        for start, _, kept in lane:
            position = -1
            for _ in range(kept):
                position += 1 + (stream.zeros() << b) + stream.number(b)
                positions.append(start + position)
    assert at == len(index)
    return positions


def elias_fano(index: np.ndarray, count: int, chunk: int, k: int) -> list[int]:
    low, at, positions = (chunk // k).bit_length() - 1, 0, []
    for start, length, kept in chunks(count, chunk, k):
        size = (kept * (low + 1) + ((length - 1) >> low) + 7) // 8
        stream, high = Bits(index[at : at + size]), 0
        at += size
        lows = [stream.number(low) for _ in range(kept)]
        for each in lows:
            high += stream.zeros()
            positions.append(start + (high << low) + each)
    assert at == len(index)
    return positions


def fixed(index: np.ndarray, count: int, chunk: int, k: int) -> list[int]:
    stream, width = Bits(index), (chunk - 1).bit_length()
    return [start + stream.number(width) for start, _, kept in chunks(count, chunk, k) for _ in range(kept)]


def gaps(gap: np.ndarray, count: int) -> list[int]:
    positions, position = [], -1
    for byte in gap.tolist():
        position += byte
        if byte < 255:
            position += 1
            positions.append(position)
    assert positions.pop() == count
    return positions


def scattered(positions: list[int], values: np.ndarray, count: int) -> np.ndarray:
    dense = np.zeros(count, np.float32)
    dense[positions] = values
    return dense


def inside(first: str, parts: dict) -> dict:
    names = list(parts)
    assert names[0] == first and all(name.startswith("values.") for name in names[1:])
    return {name.removeprefix("values."): parts[name] for name in names[1:]}


def top_k(index, values, *, chunk: int = 4096, k: int, k_max: int = 4096):
    def decode(parts: dict, count: int, length: int) -> np.ndarray:
        kept = k
        if "step" in parts:
            assert next(iter(parts)) == "step" and parts["step"].shape == (1,)
            kept, parts = min(k_max, k * 2 ** int(parts["step"][0])), dict(list(parts.items())[1:])
        positions = index(parts["index"], count, chunk, kept)
        return scattered(positions, values(inside("index", parts), len(positions), kept), count)

    return decode


def threshold(parts: dict, count: int, length: int) -> np.ndarray:
    positions = gaps(parts["gap"], count)
    return scattered(positions, two_bit(inside("gap", parts), len(positions), 128), count)


def idct(c: np.ndarray) -> np.ndarray:
    """Return the inverse transform of float64 coefficients."""
    count = len(c)
    n = np.arange(count // 2 if count % 2 == 0 else count)
    sums = np.zeros(len(n))
    for k in range(1 - count % 2, count, 2 - count % 2):
        a = (2 * n + 1) * k % (4 * count)
        scale = np.sqrt((2 if k else 1) / count)
        sums += c[k] * (scale * cosine(np.minimum(a, 4 * count - a) / (2 * count)))
    if count % 2:
        return sums
    even = idct(c[::2]) * np.sqrt(0.5)
    return np.concatenate([even + sums, (even - sums)[::-1]])


def cosine(h: np.ndarray) -> np.ndarray:
    x = np.pi * np.where(h > 0.5, 1 - h, h)
    y, r = x * x, np.ones(len(h))
    for i in range(12, 0, -1):
        r = 1 - r * y / ((2 * i - 1) * (2 * i))
    return np.where(h > 0.5, -r, r)


def dct(parts: dict, count: int, length: int) -> np.ndarray:
    c = top_k(rice, value, k=32)(parts, count, length).astype(float)
    largest = np.finfo(np.float32).max
    return np.concatenate([idct(c[i : i + 64]) for i in range(0, count, 64)]).clip(-largest, largest).astype(np.float32)


ALL = 1 << 40
CASES = {  # overrides -> decoders of large and of small tensors, and values in a group
    "compress=identity": (value, value, ALL),
    "compress=fp16": (value, value, ALL),
    "compress=int8": (uniform(8), uniform(8), 256),
    "compress=int4": (uniform(4), uniform(4), 256),
    "compress=fp4": (fp4, fp4, 256),
    "compress=sign": (sign, sign, 4096),
    "compress=two_bit": (two_bit, two_bit, 4096),
    "compress=sigma_bins": (sigma_bins, sigma_bins, ALL),
    "compress=topk": (top_k(rice, two_bit, k=128), value, ALL),
    "compress=topk_lean": (top_k(rice, sign, k=72), two_bit, ALL),
    "compress=topk_int8": (top_k(rice, uniform(8), k=128), value, ALL),
    "compress=topk_fp16 compress.large.index._target_=outerloop.compress.index.elias_fano.EliasFano": (
        top_k(elias_fano, value, k=128),
        value,
        ALL,
    ),
    "compress=topk compress.large.index._target_=outerloop.compress.index.fixed.Fixed": (
        top_k(fixed, two_bit, k=128),
        value,
        ALL,
    ),
    "compress=adaptive": (top_k(rice, two_bit, k=32, k_max=256), value, ALL),
    "compress=adaptive compress.large.k_max=200 compress.large.target=1": (
        top_k(rice, two_bit, k=32, k_max=200),
        value,
        ALL,
    ),
    "compress=threshold": (threshold, value, ALL),
    "compress=dct": (dct, value, ALL),
}


def decode_by_page(payload: bytes, large, small, length: int) -> dict[str, np.ndarray]:
    """Return the tensors of a payload, decoded as the page describes. Raises AssertionError if a check fails."""
    parts = Decoder(payload, SHAPES).parts
    return {
        name: (large if prod(shape) >= 4096 else small)(parts[name], prod(shape), length).reshape(shape)
        for name, shape in SHAPES.items()
    }


def decode_by_package(payload: bytes, overrides: str) -> None:
    """Decode a payload with the package. Raises ValueError or KeyError if it refuses the payload."""
    codec = instantiate(load.load(overrides.split()).compress)
    schema = {name: torch.Size(shape) for name, shape in SHAPES.items()}
    parts = wire.unpack(payload, schema).parts
    for name, shape in schema.items():
        codec.decode(parts[name], shape, CodecContext(round=3, seed=1, name="x"))


def encoded(overrides: str) -> tuple[bytes, dict[str, torch.Tensor]]:
    """Return a payload of random tensors, and what the package decodes it to."""
    codec = instantiate(load.load(overrides.split()).compress)
    generator = torch.Generator().manual_seed(0)
    context = CodecContext(round=3, seed=1, name="x")
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    parts = {name: codec.encode(x, context) for name, x in tensors.items()}
    schema = wire.schema_hash({name: torch.Size(shape) for name, shape in SHAPES.items()})
    header = wire.Header(round=3, fragment=0, samples=80, schema=schema, slow=7, peer=PEER)
    read = {name: codec.decode(parts[name], x.shape, context) for name, x in tensors.items()}
    return wire.pack(header, parts), read


@pytest.mark.parametrize("overrides", CASES)
def test_a_decoder_written_from_the_page_reads_what_the_package_packs(overrides):
    large, small, length = CASES[overrides]
    payload, read = encoded(overrides)
    message = Decoder(payload, SHAPES)
    assert (message.round, message.fragment, message.samples, message.slow, message.peer) == (3, 0, 80, 7, PEER)
    for name, found in decode_by_page(payload, large, small, length).items():
        assert found.astype(np.float32).tobytes() == read[name].float().numpy().tobytes(), name


def pad(draft: Draft) -> None:
    """Set the last padding bit of the 31 codes of the second tensor."""
    code = draft.tensors[1][0]
    code.data = code.data[:-1] + bytes([code.data[-1] | 0x80])


def negative_zero(draft: Draft) -> None:
    scale = draft.tensors[1][1]
    scale.data = b"\x00\x80" + scale.data[2:]


def code_8(draft: Draft) -> None:
    code = draft.tensors[1][0]
    code.data = bytes([8 | code.data[0] & 0xF0]) + code.data[1:]


def part_twice(draft: Draft) -> None:
    """Whoever keeps the last of both entries reads the right bytes."""
    draft.tensors[1].insert(0, Section(draft.tensors[1][0].name, 0, [7], b""))


def unused_name(draft: Draft) -> None:
    draft.names.append(b"junk")


def name_twice(draft: Draft) -> None:
    section = draft.tensors[-1][0]
    draft.names.append(draft.names[section.name])
    section.name = len(draft.names) - 1


def names_in_another_order(draft: Draft) -> None:
    draft.names.reverse()
    for section in draft.sections():
        section.name = len(draft.names) - 1 - section.name


def parts_in_another_order(draft: Draft) -> None:
    draft.tensors[1].reverse()


def unknown_part(draft: Draft) -> None:
    draft.names.append(b"values.junk")
    draft.tensors[-1].append(Section(len(draft.names) - 1, 0, [3], b"abc"))


def another_shape(draft: Draft) -> None:
    draft.tensors[1][0].dims = [1, *draft.tensors[1][0].dims]


PADDED = ("int4", "fp4", "sign", "two_bit", "sigma_bins")
FORGED = [
    *((f"compress={codec}", pad) for codec in PADDED),
    *((f"compress={codec}", negative_zero) for codec in ("int8", "int4", "fp4", "sign", "two_bit")),
    ("compress=fp4", code_8),
    *(
        (f"compress={codec}", change)
        for codec in ("int8", "topk_lean")
        for change in (part_twice, unused_name, name_twice, names_in_another_order, parts_in_another_order)
    ),
    *((f"compress={codec}", unknown_part) for codec in ("identity", "int8", "topk", "threshold")),
    *((f"compress={codec}", another_shape) for codec in ("identity", "fp16", "int8", "two_bit", "sigma_bins")),
]


@pytest.mark.parametrize(("overrides", "change"), FORGED)
def test_encodings_that_no_encoder_produces_are_refused(overrides, change):
    """Both by the package and by the decoder that was written from the page."""
    payload, _ = encoded(overrides)
    draft = apart(payload)
    assert draft.assembled() == payload
    change(draft)
    large, small, length = CASES[overrides]
    with pytest.raises(AssertionError):
        decode_by_page(draft.assembled(), large, small, length)
    with pytest.raises((ValueError, KeyError)):
        decode_by_package(draft.assembled(), overrides)


def test_warm_up_keeps_as_many_values_as_the_page_says():
    payload, read = encoded("compress=topk compress.large.warmup_rounds=10")
    kept = round(4096 * (128 / 4096) ** (3 / 10))
    found = top_k(rice, two_bit, k=kept)(Decoder(payload, SHAPES).parts["model.0.weight"], 5 * 1031, ALL)
    assert found.tobytes() == read["model.0.weight"].numpy().tobytes()


def test_the_page_names_every_compressor():
    text = PAGE.read_text()
    missing = [name for name in load.groups()["compress"] if f"`{name}`" not in text and not name.startswith("topk_")]
    assert [name for name in missing if name != "powersgd_warm"] == []
