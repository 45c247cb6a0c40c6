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
    places = np.arange(0, 8, bits)
    return ((packed[:, None] >> places) & (2**bits - 1)).reshape(-1)[:count].astype(int)


def groups(count: int, length: int) -> np.ndarray:
    """Return the group of each value."""
    return np.arange(count) // length


def two_bit(parts: dict, count: int, length: int) -> np.ndarray:
    code = codes(parts["code"], 2, count)
    size = parts["level"][groups(count, length), code % 2]
    return np.where(code >= 2, -size, size)


def uniform(bits: int):
    def decode(parts: dict, count: int, length: int) -> np.ndarray:
        top = 2 ** (bits - 1) - 1
        return (codes(parts["code"], bits, count) - top).astype(np.float32) * parts["scale"][groups(count, length)]

    return decode


def fp4(parts: dict, count: int, length: int) -> np.ndarray:
    code = codes(parts["code"], 4, count)
    size = np.where(code % 8 > 0, 2.0 ** (code % 8 - 7), 0).astype(np.float32)
    return np.where(code >= 8, -size, size) * parts["scale"][groups(count, length)]


def sign(parts: dict, count: int, length: int) -> np.ndarray:
    size = parts["scale"][groups(count, length)]
    return np.where(codes(parts["code"], 1, count) == 1, -size, size)


def sigma_bins(parts: dict, count: int, length: int) -> np.ndarray:
    return parts["level"][codes(parts["code"], 2, count)]


def value(parts: dict, count: int, length: int) -> np.ndarray:
    return parts["value"].reshape(-1).astype(np.float32)


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


def inside(parts: dict) -> dict:
    return {name.removeprefix("values."): part for name, part in parts.items() if name.startswith("values.")}


def top_k(index, values, *, chunk: int = 4096, k: int):
    def decode(parts: dict, count: int, length: int) -> np.ndarray:
        kept = k * 2 ** int(parts["step"][0]) if "step" in parts else k
        positions = index(parts["index"], count, chunk, kept)
        return scattered(positions, values(inside(parts), len(positions), kept), count)

    return decode


def threshold(parts: dict, count: int, length: int) -> np.ndarray:
    positions = gaps(parts["gap"], count)
    return scattered(positions, two_bit(inside(parts), len(positions), 128), count)


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
    "compress=adaptive": (top_k(rice, two_bit, k=32), value, ALL),
    "compress=threshold": (threshold, value, ALL),
}


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
    for name, shape in SHAPES.items():
        decode = large if prod(shape) >= 4096 else small
        found = decode(message.parts[name], prod(shape), length).reshape(shape)
        assert found.astype(np.float32).tobytes() == read[name].float().numpy().tobytes(), name


def test_warm_up_keeps_as_many_values_as_the_page_says():
    payload, read = encoded("compress=topk compress.large.warmup_rounds=10")
    kept = round(4096 * (128 / 4096) ** (3 / 10))
    found = top_k(rice, two_bit, k=kept)(Decoder(payload, SHAPES).parts["model.0.weight"], 5 * 1031, ALL)
    assert found.tobytes() == read["model.0.weight"].numpy().tobytes()


def test_the_page_names_every_compressor():
    text = PAGE.read_text()
    missing = [name for name in load.groups()["compress"] if f"`{name}`" not in text and not name.startswith("topk_")]
    assert [name for name in missing if name != "powersgd_warm"] == []
