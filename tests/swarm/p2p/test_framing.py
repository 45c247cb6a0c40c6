"""A message arrives whole and right, or it raises; its bound holds before a byte of it is read."""

import asyncio
import hashlib

import pytest

from outerloop.swarm.p2p.framing import PIECE_BYTES, SMALL_BYTES, BrokenStream, Stream
from tests.support.swarm.memory_network import stream_pair
from tests.support.swarm.virtual_clock import run, virtual


def frame(content: bytes, *, length: int | None = None, end: bytes = b"end\n") -> bytes:
    announced = len(content) if length is None else length
    return announced.to_bytes(8, "big") + hashlib.sha256(content).digest() + content + end


async def receive(raw: bytes, limit: int = 1 << 20) -> bytes:
    """What a reader makes of raw bytes followed by the end of the stream."""
    _, far, to_far, _ = stream_pair()
    to_far.write(raw)
    to_far.close()
    return await far.receive(at_most=limit)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7])
@virtual
async def test_round_trip(size: int) -> None:
    near, far, _, _ = stream_pair()
    sent, received = [0], [0]
    content = bytes(range(256)) * (size // 256 + 1)
    _, got = await asyncio.gather(
        near.send(content[:size], count=sent.append), far.receive(at_most=size, count=received.append)
    )
    assert got == content[:size] and sum(sent) == sum(received) == size


@pytest.mark.parametrize(("size", "writes"), [(0, 1), (SMALL_BYTES, 1), (SMALL_BYTES + 1, 3)])
def test_a_small_message_leaves_at_once(size: int, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    async def write(self: Stream, piece: bytes) -> None:
        written.append(bytes(piece))

    async def send() -> None:
        await stream_pair()[0].send(b"x" * size)

    monkeypatch.setattr(Stream, "write", write)
    run(send())
    assert len(written) == writes and b"".join(written) == frame(b"x" * size)


def test_the_bound_holds_before_anything_is_allocated() -> None:
    with pytest.raises(BrokenStream, match="at most 10 are allowed"):
        run(receive(frame(b"", length=1 << 60), limit=10))


@pytest.mark.parametrize("kept", [0, 39, 40, 41, 140, 143])
def test_a_truncated_stream_raises(kept: int) -> None:
    with pytest.raises(BrokenStream, match="early"):
        run(receive(frame(bytes(100))[:kept]))


def test_wrong_content_raises() -> None:
    raw = bytearray(frame(bytes(100)))
    raw[60] ^= 1
    with pytest.raises(BrokenStream, match="sha256"):
        run(receive(bytes(raw)))


def test_a_wrong_end_raises() -> None:
    with pytest.raises(BrokenStream, match="end mark is missing"):
        run(receive(frame(bytes(100), end=b"more")))


def test_a_stalled_sender_raises() -> None:
    async def stall() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(frame(bytes(100))[:50])
        await Stream(reader, None).receive(at_most=1000)  # type: ignore[arg-type]

    with pytest.raises(BrokenStream, match="did not arrive for 30 s"):
        run(stall())


@pytest.mark.parametrize("content", [b"\xc1", b"\x01", b"", b"\x80\x80", bytes(70_000)])
def test_control_messages_are_small_maps(content: bytes) -> None:
    async def receive_object() -> None:
        near, far, _, _ = stream_pair()
        await near.send(content)
        await far.receive_object()

    with pytest.raises(BrokenStream):
        run(receive_object())
