"""Leaves, roots, headers and picks are what hashlib gives for a few bytes; nothing is read beyond its limits."""

from __future__ import annotations

import hashlib

import pytest

from outerloop.swarm.audit.leaves import (
    HEADER,
    LEAF_BYTES,
    MAX_LEAVES,
    NO_ROOT,
    Header,
    Leaf,
    leaves_from,
    machine_class,
    root_of,
    split,
)
from outerloop.swarm.audit.picks import picks
from outerloop.swarm.validation import MalformedMessage

A, B = Leaf(b"a" * 32, b"b" * 32, b"c" * 32), Leaf(b"d" * 32, b"e" * 32, b"f" * 32)
COMMIT = bytes(range(32))
CPU, GPU = b"C" * 32, b"G" * 32


def test_a_root_is_one_hash_of_the_round_and_its_leaves() -> None:
    """The same with sha256sum: printf 'outerloop/1/leaves\\n', the 8 bytes of the number, 'aaa...fff'."""
    content = b"outerloop/1/leaves\n" + bytes([0, 0, 0, 0, 0, 0, 1, 2])
    content += b"".join(bytes([letter]) * 32 for letter in b"abcdef")
    assert root_of(258, [A, B]) == hashlib.sha256(content).digest()
    assert root_of(258, []) == NO_ROOT == bytes(32)
    different = {root_of(258, [A, B]), root_of(259, [A, B]), root_of(258, [B, A]), root_of(258, [A])}
    assert len(different) == 4


def test_a_machine_class_is_a_hash_of_its_description() -> None:
    expected = hashlib.sha256(b"outerloop/1/machine class\nx86_64, AVX2").digest()
    assert machine_class("x86_64, AVX2") == expected != machine_class("x86_64, AVX512")


def test_leaves_return_from_their_bytes() -> None:
    assert leaves_from(A.to_bytes() + B.to_bytes()) == [A, B] and leaves_from(b"") == []
    for wrong in (bytes(1), bytes(LEAF_BYTES - 1), bytes((MAX_LEAVES + 1) * LEAF_BYTES)):
        with pytest.raises(MalformedMessage, match="at most 4096 leaves of 96 bytes"):
            leaves_from(wrong)


def test_a_header_precedes_the_message() -> None:
    header = Header(7, b"r" * 32, CPU)
    assert header.to_bytes() == b"OAUD" + bytes([0, 0, 0, 7]) + b"r" * 32 + CPU
    found, message = split(header.to_bytes() + b"message")
    assert found == header and bytes(message) == b"message"
    none = Header(0, NO_ROOT, CPU)
    assert split(memoryview(none.to_bytes())) == (none, b"")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(HEADER.size - 1),
        b"OUTL" + bytes(96),
        Header(1, b"r" * 32, CPU).to_bytes(),
        Header(MAX_LEAVES + 1, b"r" * 32, CPU).to_bytes(),
        Header(0, b"r" * 32, CPU).to_bytes(),
    ],
)
def test_a_payload_without_a_valid_header_is_left_as_it_is(payload: bytes) -> None:
    assert split(payload) == (None, payload)


def header(machine: bytes, leaves: int = 7) -> Header:
    return Header(leaves, b"r" * 32, machine)


def drawn_by(peers: str) -> bytes:
    return hashlib.sha256(b"outerloop/1/audit\n" + COMMIT + peers.encode()).digest()


def test_a_pick_is_computed_from_two_hashes() -> None:
    headers = {f"00{i}-{peer}": header(CPU) for i, peer in enumerate("abcd")}
    drawn = {peer: drawn_by(peer) for peer in "abcd"}
    everyone = picks(5, COMMIT, headers, probability=1.0)
    for name, pick in everyone.items():
        peer = name[4:]
        order = {
            other: hashlib.sha256(b"outerloop/1/audit\n" + COMMIT + (peer + other).encode()).digest()
            for other in "abcd"
        }
        auditors = sorted(set("abcd") - {peer}, key=order.__getitem__)[:2]
        assert [auditor[4:] for auditor in pick.auditors] == auditors
        assert pick.window == int.from_bytes(drawn[peer][8:16], "big") % 6
        assert (pick.number, pick.commit, pick.header) == (5, COMMIT, headers[name])
    half = {peer for peer in "abcd" if drawn[peer][0] < 128}
    assert {name[4:] for name in picks(5, COMMIT, headers, probability=0.5)} == half and 0 < len(half) < 4
    assert picks(5, COMMIT, headers, probability=0.0) == {}


def test_only_participants_of_the_same_class_audit_a_peer() -> None:
    headers = {"000-a": header(CPU), "001-b": header(CPU), "002-c": header(GPU), "003-d": header(GPU, leaves=0)}
    found = picks(5, COMMIT, headers, probability=1.0)
    assert {name: pick.auditors for name, pick in found.items()} == {
        "000-a": ("001-b",),
        "001-b": ("000-a",),
        "002-c": ("003-d",),
        "003-d": ("002-c",),
    }
    assert found["003-d"].window == 0
    assert picks(5, COMMIT, {"000-a": header(CPU)}, probability=1.0)["000-a"].auditors == ()


def test_peers_are_audited_as_often_as_the_probability_says() -> None:
    """Of 4,000 draws with probability 0.1, the standard deviation is 19."""
    headers = {f"00{i}-{peer}": header(CPU) for i, peer in enumerate("abcd")}
    commits = [hashlib.sha256(bytes([i // 256, i % 256])).digest() for i in range(1000)]
    assert 320 < sum(len(picks(i, commit, headers, probability=0.1)) for i, commit in enumerate(commits)) < 480
