"""Pack one message into bytes, and unpack it again. The format is self-describing, bounded and canonical.

Layout, all integers little-endian:

    magic          4 bytes   b"OUTL"
    version        u8        1
    round          u32       number of the round
    fragment       u16       index of the model fragment
    samples        u64       number of training samples that contribute to the message
    schema         u64       hash of names and shapes of the fragment's tensors, equal on all peers
    slow           u64       hash of the sender's slow weights before this round
    peer           u8 length + utf-8 bytes
    part names     u8 count (at most 16), then for each, in order of first use: u8 length + utf-8 bytes
    tensors        u32 count, then for each: u8 number of parts (at most 16), and for each part:
                     u8 index of its name, u8 dtype, u8 number of dimensions, u32 each dimension
    sections       the raw little-endian bytes of every part, in table order, without gaps
    checksum       u64       xxh3 of everything before it

dtype codes: 0 uint8, 1 float32, 2 bfloat16, 3 float16, 4 float64. Tensors are in schema order; their names are not
sent. Nothing is pickled. Equal content gives equal bytes. A reader that knows the schema can reject an oversized
message before it reads the message. Every count is checked against the number of available bytes.

Peers use `unpack`. Use `read` to inspect a message of an unknown model; it returns the tensors without names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import torch
import xxhash
from torch import Size, Tensor

from outerloop.types import Parts

MAGIC, VERSION = b"OUTL", 1
HEAD = struct.Struct("<4sBIHQQQ")
CHECKSUM = struct.Struct("<Q")
DTYPES = (torch.uint8, torch.float32, torch.bfloat16, torch.float16, torch.float64)
MAX_DIMS = 8
PART = struct.Struct("<BBB")
SHAPES = [struct.Struct(f"<{dims}I") for dims in range(MAX_DIMS + 1)]
MAX_PARTS = 16
"""Maximum number of parts of a tensor, and of different part names in a message. Empty parts need no bytes in the
sections, so that without this limit a small message could describe many of them."""
MAX_VALUES = 1 << 48
"""Limit on the product of a shape's nonzero dimensions. torch computes this product, and fails beyond 63 bits."""
QUOTED = 40
"""Maximum number of characters of an invalid name that an error message quotes."""

Schema = dict[str, Size]
"""Name and shape of every tensor of a fragment, in model order."""


class InvalidMessage(ValueError):
    """The bytes are not a valid message, or the message does not match the expected schema."""


@dataclass(frozen=True)
class Header:
    """The metadata of a message, as claimed by its sender. `slow` and `schema` are 64-bit hashes."""

    round: int
    fragment: int
    samples: int
    schema: int
    slow: int
    peer: str


@dataclass(frozen=True)
class Message:
    """One decoded message: its header and the parts of each tensor."""

    header: Header
    parts: dict[str, Parts]


def schema_hash(schema: Schema) -> int:
    """Return the 64-bit hash of a schema's names and shapes."""
    return xxhash.xxh3_64_intdigest(repr([(name, tuple(shape)) for name, shape in schema.items()]).encode())


def name_hash(name: str) -> int:
    """Return a 63-bit hash of `name` that is the same on every machine."""
    return xxhash.xxh3_64_intdigest(name.encode()) >> 1


def joint_hash(hashes: Iterable[int]) -> int:
    """Combine 64-bit hashes, in the given order, into one 64-bit hash."""
    return xxhash.xxh3_64_intdigest(b"".join(CHECKSUM.pack(h) for h in hashes))


def tensors_hash(tensors: Mapping[str, Tensor]) -> int:
    """Return a 64-bit hash of the tensors' raw bytes, in the given order."""
    state = xxhash.xxh3_64()
    for x in tensors.values():
        state.update(bytes_view(x))
    return state.intdigest()


def size_limit(schema: Schema) -> int:
    """Return the maximum size in bytes of a message of this schema: 10 bytes per value, plus headers and tables."""
    return 4096 + sum(1024 + 10 * shape.numel() for shape in schema.values())


def pack(header: Header, parts: Mapping[str, Parts]) -> bytes:
    """Pack the header and the parts of every tensor, in schema order, into one message.

    Raises ValueError if the tensors have more than MAX_PARTS different part names.
    """
    names = list(dict.fromkeys(name for tensor in parts.values() for name in tensor))
    if len(names) > MAX_PARTS:
        raise ValueError(f"the codecs send {len(names)} different parts, more than the limit of {MAX_PARTS}")
    head = HEAD.pack(
        MAGIC, VERSION, header.round, header.fragment, header.samples, header.schema, header.slow
    ) + encode_text(header.peer)
    table = bytes([len(names)]) + b"".join(map(encode_text, names)) + struct.pack("<I", len(parts))
    entries = b"".join(encode_entry(tensor, names) for tensor in parts.values())
    body = b"".join(
        [head, table, entries, *(bytes_view(part) for tensor in parts.values() for part in tensor.values())]
    )
    return body + CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def unpack(blob: bytes | memoryview, schema: Schema) -> Message:
    """Unpack one message of this schema.

    Raises InvalidMessage, with the reason, if the message is malformed or does not match the schema.
    """
    if len(blob) > size_limit(schema):
        raise InvalidMessage(f"the message has {len(blob)} bytes, more than the schema's limit of {size_limit(schema)}")
    with as_invalid_message():
        reader = Reader(verified_body(blob))
        header = read_header(reader)
        check_schema(header, schema)
        names, count = read_names(reader)
        if count != len(schema):
            raise InvalidMessage(f"the message has {count} tensors, but the schema has {len(schema)}")
        return Message(header, dict(zip(schema, read_tensors(reader, names, count), strict=True)))


def read(blob: bytes) -> tuple[Header, list[Parts]]:
    """Unpack a message without its schema. Return the header and the parts of each tensor.

    Raises InvalidMessage if the bytes are not a valid message.
    """
    with as_invalid_message():
        reader = Reader(verified_body(blob))
        header = read_header(reader)
        return header, read_tensors(reader, *read_names(reader))


@contextmanager
def as_invalid_message() -> Iterator[None]:
    """Convert errors from reading truncated or malformed bytes to InvalidMessage."""
    try:
        yield
    except (struct.error, IndexError, UnicodeDecodeError) as broken:
        raise InvalidMessage(f"the message is truncated or malformed: {broken}") from broken


def verified_body(blob: bytes | memoryview) -> memoryview:
    """Return the bytes before the checksum. Raises InvalidMessage if the checksum does not match."""
    body = memoryview(blob)[: -CHECKSUM.size]
    if CHECKSUM.unpack(blob[-CHECKSUM.size :])[0] != xxhash.xxh3_64_intdigest(body):
        raise InvalidMessage("the checksum does not match")
    return body


def read_header(reader: Reader) -> Header:
    """Read and return the header. Raises InvalidMessage if it belongs to another format or format version."""
    magic, version, *fields = reader.read_struct(HEAD)
    if magic != MAGIC or version != VERSION:
        raise InvalidMessage(f"it has magic {magic!r} and version {version}, expected {MAGIC!r} and version {VERSION}")
    return Header(*fields, peer=reader.read_text())  # type: ignore[misc]


def check_schema(header: Header, schema: Schema) -> None:
    """Check that the sender's model has this schema. Raises InvalidMessage if it has another one."""
    if header.schema != schema_hash(schema):
        raise InvalidMessage(
            f"{header.peer} has another model: its schema is {header.schema:016x}, not {schema_hash(schema):016x}"
        )


def read_names(reader: Reader) -> tuple[list[str], int]:
    """Read and return the names of the parts, of which there are at most MAX_PARTS, and the number of tensors."""
    return [reader.read_text() for _ in range(read_part_count(reader))], reader.read_int("<I")


def read_part_count(reader: Reader) -> int:
    """Read and return a number of parts or of part names. Raises InvalidMessage if it exceeds MAX_PARTS."""
    count = reader.read_int("<B")
    if count > MAX_PARTS:
        raise InvalidMessage(f"it has {count} parts or part names, more than the limit of {MAX_PARTS}")
    return count


def read_tensors(reader: Reader, names: list[str], count: int) -> list[Parts]:
    """Read the table and the sections. Return the parts of each tensor; `count` is the number of tensors.

    Raises InvalidMessage if bytes remain after the last section, or if `names` are not the part names in the table, in
    the order of first use.
    """
    table = [read_entry(reader, names) for _ in range(count)]
    if list(dict.fromkeys(name for entries in table for name in entries)) != names:
        raise InvalidMessage("the part names are not those in the table, in the order of first use")
    tensors = [{part: reader.read_tensor(*what) for part, what in entries.items()} for entries in table]
    if reader.remaining:
        raise InvalidMessage(f"{reader.remaining} bytes remain after the last tensor")
    return tensors


def read_entry(reader: Reader, names: Sequence[str]) -> dict[str, tuple[torch.dtype, list[int]]]:
    """Read one tensor's table entry. Return a map from part name to dtype and shape.

    Raises InvalidMessage if it contains too many parts, a part twice, or a shape that is not possible.
    """
    entries = {}
    for _ in range(read_part_count(reader)):
        name_index, dtype_code, dims = reader.read_struct(PART)
        name, dtype = names[name_index], DTYPES[dtype_code]
        if dims > MAX_DIMS:
            raise InvalidMessage(f"a part has {dims} dimensions, more than the limit of {MAX_DIMS}")
        shape = list(reader.read_struct(SHAPES[dims]))
        if any(length > len(reader.data) for length in shape) or prod(max(1, n) for n in shape) > MAX_VALUES:
            raise InvalidMessage(f"a part of shape {shape} does not fit in a message of {len(reader.data)} bytes")
        if name in entries:
            raise InvalidMessage(f"a tensor has the part {name[:QUOTED]!r} twice")
        entries[name] = (dtype, shape)
    return entries


def encode_entry(tensor: Parts, names: Sequence[str]) -> bytes:
    """Return one tensor's table entry. `names` are the part names of the message."""
    return bytes([len(tensor)]) + b"".join(
        struct.pack(f"<BBB{x.dim()}I", names.index(name), DTYPES.index(x.dtype), x.dim(), *x.shape)
        for name, x in tensor.items()
    )


def bytes_view(x: Tensor) -> memoryview:
    """Return a tensor's bytes in row-major order, without a copy if it is contiguous and on the CPU."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def encode_text(text: str) -> bytes:
    """Encode a text as UTF-8, preceded by its length in bytes as a u8."""
    encoded = text.encode()
    return struct.pack("<B", len(encoded)) + encoded


class Reader:
    """A cursor over bytes that never moves past their end."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.position = data, 0

    @property
    def remaining(self) -> int:
        """Number of bytes not yet read."""
        return len(self.data) - self.position

    def read_bytes(self, count: int) -> memoryview:
        """Read the next `count` bytes. Raises InvalidMessage if fewer remain."""
        if count > self.remaining:
            raise InvalidMessage(f"{count} bytes expected, but only {self.remaining} remain")
        self.position += count
        return self.data[self.position - count : self.position]

    def read_struct(self, layout: struct.Struct) -> tuple:
        """Read the fields of a fixed-size layout."""
        return layout.unpack(self.read_bytes(layout.size))

    def read_int(self, code: str) -> int:
        """Read one integer; `code` is its struct format, for example "<I"."""
        return self.read_struct(struct.Struct(code))[0]

    def read_text(self) -> str:
        """Read a length-prefixed UTF-8 text.

        Texts appear in error messages and logs, so non-printable characters raise InvalidMessage.
        """
        text = str(self.read_bytes(self.read_int("<B")), "utf-8")
        if not text.isprintable():
            raise InvalidMessage(f"the name {text[:QUOTED]!r} is not printable")
        return text

    def read_tensor(self, dtype: torch.dtype, shape: list[int]) -> Tensor:
        """Read the next section as a tensor of this dtype and shape."""
        data = self.read_bytes(prod(shape) * dtype.itemsize)
        if not data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
