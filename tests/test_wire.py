"""One message <-> one byte string."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Size

from outerloop import wire

SCHEMA = {"a": Size([3]), "b": Size([]), "c": Size([0]), "d": Size([2, 5])}
HEADER = wire.Header(round=7, fragment=1, samples=12, schema=wire.schema_hash(SCHEMA), slow=2**63 + 5, peer="000-π")


def message():
    return {
        "a": {"code": torch.tensor([1, 2], dtype=torch.uint8), "level": torch.randn(1, 2).bfloat16()},
        "b": {"value": torch.tensor(1.5)},
        "c": {"value": torch.zeros(0, dtype=torch.float16)},
        "d": {"code": torch.arange(3, dtype=torch.uint8), "value": torch.randn(2, 5, dtype=torch.float64)},
    }


def test_comes_back_bit_for_bit():
    parts = message()
    back = wire.unpack(wire.pack(HEADER, parts), SCHEMA)
    assert back.header == HEADER and list(back.parts) == list(parts)
    for name, tensor in parts.items():
        assert list(back.parts[name]) == list(tensor)
        for part, x in tensor.items():
            assert torch.equal(back.parts[name][part], x) and back.parts[name][part].dtype == x.dtype


def test_length_is_the_formula():
    """Fixed head, peer, part names, table and the raw sections; nothing else."""
    head = struct.calcsize("<4sBIHQQQ") + 1 + len("000-π".encode())
    names = 1 + sum(1 + len(name) for name in ("code", "level", "value")) + 4
    dims = {"a": [1, 2], "b": [0], "c": [1], "d": [1, 2]}
    table = sum(1 + sum(3 + 4 * n for n in each) for each in dims.values())
    sections = (2 + 4) + 4 + 0 + (3 + 80)
    assert len(wire.pack(HEADER, message())) == head + names + table + sections + 8


def test_equal_content_equal_bytes():
    parts = message()
    copy = {name: {part: x.clone() for part, x in tensor.items()} for name, tensor in parts.items()}
    assert wire.pack(HEADER, parts) == wire.pack(HEADER, copy)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_changed_byte_is_found(data):
    blob = bytearray(wire.pack(HEADER, message()))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(wire.InvalidMessage):
        wire.unpack(bytes(blob), SCHEMA)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_lie_with_a_right_checksum_stays_within_bounds(data):
    """Whoever computes the checksum too can still only be refused or give tensors no longer than the message."""
    blob = bytearray(wire.pack(HEADER, message()))[:-8]
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    blob += struct.pack("<Q", wire.xxhash.xxh3_64_intdigest(bytes(blob)))
    try:
        parts = wire.unpack(bytes(blob), SCHEMA).parts
    except wire.InvalidMessage:
        return
    assert sum(x.numel() * x.element_size() for tensor in parts.values() for x in tensor.values()) <= len(blob)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise):
    with pytest.raises(wire.InvalidMessage):
        wire.unpack(noise, SCHEMA)


def test_too_long_is_refused_unread():
    with pytest.raises(wire.InvalidMessage, match="more than"):
        wire.unpack(bytes(wire.size_limit(SCHEMA) + 1), SCHEMA)


def test_another_model_is_named():
    other = SCHEMA | {"d": Size([5, 2])}
    with pytest.raises(wire.InvalidMessage, match="000-π has another model"):
        wire.unpack(wire.pack(HEADER, message()), other)


def test_hash_of_weights_sees_one_bit():
    x = {"w": torch.zeros(1000)}
    before = wire.tensors_hash(x)
    x["w"][999] = -0.0
    assert wire.tensors_hash(x) != before


def test_a_shape_that_cannot_be_is_refused():
    """A zero dimension beside huge ones takes no bytes and would overflow."""
    parts = message()
    blob = bytearray(wire.pack(HEADER, parts))
    shape = struct.pack("<B2I", 2, 2, 5)
    at = blob.index(shape)
    blob[at : at + 9] = struct.pack("<B2I", 2, 0, 2**32 - 1)
    body = bytes(blob[:-8])
    with pytest.raises(wire.InvalidMessage, match="shape"):
        wire.unpack(body + struct.pack("<Q", wire.xxhash.xxh3_64_intdigest(body)), SCHEMA)
