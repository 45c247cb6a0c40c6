"""Payloads that nobody honest sends: honest ones taken apart, changed and put together again, the checksum right."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import xxhash
from torch import Size

from outerloop import wire
from tests.support.payload_checks import PEER, ROUND, SCHEMA

PATTERNS = [bytes([a, b]) for a, b in ((0, 0), (255, 255), (0x80, 0x7F), (0x7F, 0x7F), (0xC0, 0x7F), (0, 0x80), (1, 0))]
"""0, all bits, and as bfloat16: infinity, the largest number, NaN, -0 and the smallest."""


def signed(body: bytes) -> bytes:
    """The checksum put right."""
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


def repaired(blob: bytes) -> bytes:
    """The fixed part of the header and the checksum put right, so that what lies behind them is reached."""
    start = wire.HEAD.pack(
        wire.MAGIC, wire.VERSION, ROUND.number, ROUND.fragment, 64, wire.schema_hash(SCHEMA), 7
    ) + wire.encode_text(PEER)
    return signed(start + blob[len(start) : -8])


@dataclass
class Section:
    """One part of one tensor, as the table has it, and its bytes."""

    name: int
    dtype: int
    dims: list[int]
    data: bytes


@dataclass
class Draft:
    """A message in pieces, each of which may be wrong."""

    numbers: list[int]
    peer: bytes
    names: list[bytes]
    count: int
    tensors: list[list[Section]]

    def sections(self) -> list[Section]:
        return [section for tensor in self.tensors for section in tensor]

    def assembled(self) -> bytes:
        """One message with a right checksum; numbers are cut to what their fields hold."""
        widths = (0xFF, 0xFFFFFFFF, 0xFFFF, 2**64 - 1, 2**64 - 1, 2**64 - 1)
        out = struct.pack("<4sBIHQQQ", wire.MAGIC, *(n & w for n, w in zip(self.numbers, widths, strict=True)))
        out += text(self.peer) + bytes([len(self.names) & 0xFF]) + b"".join(map(text, self.names))
        out += struct.pack("<I", self.count & 0xFFFFFFFF)
        for tensor in self.tensors:
            out += bytes([len(tensor) & 0xFF]) + b"".join(map(table_entry, tensor))
        return signed(out + b"".join(section.data for section in self.sections()))


def text(raw: bytes) -> bytes:
    return bytes([len(raw) & 0xFF]) + raw[:255]


def table_entry(section: Section) -> bytes:
    dims = [length & 0xFFFFFFFF for length in section.dims]
    return struct.pack(f"<BBB{len(dims)}I", section.name & 0xFF, section.dtype & 0xFF, len(dims), *dims)


def apart(blob: bytes) -> Draft:
    """A message that is well-formed -> its pieces. Raises InvalidMessage."""
    header, tensors = wire.read(blob)
    names = list(dict.fromkeys(name for parts in tensors for name in parts))
    numbers = [wire.VERSION, header.round, header.fragment, header.samples, header.schema, header.slow]
    sections = [
        [
            Section(names.index(n), wire.DTYPES.index(x.dtype), list(x.shape), bytes(wire.bytes_view(x)))
            for n, x in parts.items()
        ]
        for parts in tensors
    ]
    return Draft(numbers, header.peer.encode(), [name.encode() for name in names], len(tensors), sections)


def mutated(blob: bytes, other: bytes, draw: Random) -> bytes:
    """One to three changes to a message: to its pieces where it is well-formed, else to its bytes."""
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        try:
            draft = apart(blob)
        except wire.InvalidMessage:
            return changed_bytes(blob, other, draw)
        if not draft.sections() or draw.random() < 0.15:
            return changed_bytes(blob, other, draw)
        draw.choice(CHANGES)(draft, apart(other), draw)
        blob = draft.assembled()
    return blob


def changed_bytes(blob: bytes, other: bytes, draw: Random) -> bytes:
    """A byte turned over, put in or taken out, a cut, or the beginning of one message and the end of another."""
    at, to = draw.randrange(len(blob) + 1), draw.randrange(len(other) + 1)
    byte = bytes([draw.randrange(256)])
    out = draw.choice(
        [
            blob[:at] + byte + blob[at + 1 :],
            blob[:at] + byte + blob[at:],
            blob[:at] + blob[at + 1 :],
            blob[:at],
            blob[:at] + other[to:],
        ]
    )
    return draw.choice([out, signed(out[:-8]), repaired(out), repaired(out)])


def change_number(draft: Draft, other: Draft, draw: Random) -> None:
    """One number of the header; often the one that is allowed to be anything."""
    place = draw.choice([0, 1, 2, 3, 3, 3, 4, 5, 5, 5])
    draft.numbers[place] = draw.choice([0, 2**63, -1, draw.getrandbits(64)])


def change_texts(draft: Draft, other: Draft, draw: Random) -> None:
    """The peer's or a part's name."""
    new = draw.choice([b"", b"\xff\xfe", b"\x1b[2J\n", b"x" * 255, *other.names])
    if draw.random() < 0.2 or not draft.names:
        draft.peer = new
    else:
        draft.names[draw.randrange(len(draft.names))] = new


def change_count(draft: Draft, other: Draft, draw: Random) -> None:
    """How many tensors there are said to be."""
    draft.count = draw.choice([0, draft.count - 1, draft.count + 1, 0xFFFFFFFF])


def change_tensors(draft: Draft, other: Draft, draw: Random) -> None:
    """A tensor gone, twice, or another one's."""
    at = draw.randrange(len(draft.tensors))
    draft.tensors[at : at + 1] = draw.choice([[], 2 * [draft.tensors[at]], [draw.choice(other.tensors)]])
    draft.count = draw.choice([draft.count, len(draft.tensors)])


def change_parts(draft: Draft, other: Draft, draw: Random) -> None:
    """A part gone, twice, another one's, one of another codec, or very many."""
    tensor = draw.choice([tensor for tensor in draft.tensors if tensor])
    at = draw.randrange(len(tensor))
    foreign = draw.choice([*draft.sections(), *other.sections()])
    none = Section(draw.randrange(len(draft.names)), 0, [0], b"")
    tensor[at : at + 1] = draw.choice(
        [[], 2 * [tensor[at]], [foreign], [tensor[at], foreign], [tensor[at], *200 * [none]]]
    )


def change_name(draft: Draft, other: Draft, draw: Random) -> None:
    """Which name a part has."""
    draw.choice(draft.sections()).name = draw.choice([*range(len(draft.names) + 1), 255])


def change_dtype(draft: Draft, other: Draft, draw: Random) -> None:
    """What the bytes of a part are said to be; the length is made to fit."""
    section = draw.choice(draft.sections())
    section.dtype = draw.choice([*range(len(wire.DTYPES) + 1), 255])
    if section.dtype < len(wire.DTYPES) and draw.random() < 0.9:
        size = wire.DTYPES[section.dtype].itemsize
        values = Size(section.dims).numel()
        section.data = (section.data * size)[: values * size].ljust(values * size, b"\x7f")


def change_dims(draft: Draft, other: Draft, draw: Random) -> None:
    """How long a part is said to be, in how many dimensions."""
    section = draw.choice(draft.sections())
    dims, values = section.dims, Size(section.dims).numel()
    with_zero = [[*dims, 0], [0, *([4000] * 7)], [*([4000] * 7), 0], [0, 2**32 - 1]]
    same_count = [[values], [1, values], [values, 1], [*dims, 1], dims[::-1], dims[1:], []]
    too_many = [[2**32 - 1], [*dims, 2**32 - 1], [values + 1], [values - 1], [1] * 8, [1] * 9, [1] * 255]
    section.dims = draw.choice([*with_zero, *same_count, *too_many])


def change_length(draft: Draft, other: Draft, draw: Random) -> None:
    """A part shorter or longer, its table right."""
    section = draw.choice(draft.sections())
    size = len(section.data) // max(1, Size(section.dims).numel())
    values = draw.choice([0, 1, Size(section.dims).numel() + draw.choice([-1, 1, 7, 4000])])
    section.data = section.data[: max(0, values) * size].ljust(max(0, values) * size, b"\1")
    section.dims = [max(0, values)]


def change_data(draft: Draft, other: Draft, draw: Random) -> None:
    """Some values of a part, or all of them."""
    section = draw.choice([section for section in draft.sections() if section.data] or draft.sections())
    length = len(section.data)
    pattern = draw.choice([*PATTERNS, draw.getrandbits(64).to_bytes(8, "little")])
    at = draw.choice([0, 2 * draw.randrange(length // 2 + 1), draw.randrange(length + 1)])
    many = draw.choice([1, 1, 2, length])
    section.data = (section.data[:at] + pattern * many + section.data[at + len(pattern) * many :])[:length]


CHANGES: list[Callable[[Draft, Draft, Random], None]] = [
    change_number,
    change_texts,
    change_count,
    change_tensors,
    change_parts,
    change_name,
    change_dtype,
    change_dims,
    change_dims,
    change_length,
    *12 * [change_data],
]
