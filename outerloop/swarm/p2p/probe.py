"""Probe: measure the round-trip time and the bandwidth to a peer, and its clock offset.

A peer answers probes from every peer that its allow-list admits or, in an open run, from any peer:

    {bytes}  ->   <- {clock, bytes, seen}           its time, the number of bytes granted, and the address from which
                                                    it sees the prober connect
    {}       ->   <- {clock}                        round trip, PINGS times
    bytes granted, end mark ->   <- {}              upload
    {}       ->   <- bytes granted, end mark        download

The prober (e.g. `outerloop doctor`) need not be a member. Probes are cheap: each transfers at most 1 MiB per direction.
All probes together transfer, after the first 8 MiB, at most 8 MiB per direction and minute (1.1 Mbit/s) on average.
Nothing is stored or forwarded.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from outerloop.swarm.access.rate_limits import Bucket, Rate, loop_s
from outerloop.swarm.p2p.framing import END_MARK, PIECE_BYTES, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, Transport, anybody
from outerloop.swarm.timeouts import MEASURE_S, OPEN_S, limit

PROTOCOL = "outerloop/1/probe"
PROBE_BYTES = 1 << 20
MINUTE_BYTES = 8 << 20
PINGS = 4
MAX_SEEN = 256


@dataclass(frozen=True)
class Measured:
    """Result of a probe.

    `clock_ahead_s`: seconds by which the remote clock is ahead, plus or minus half of `round_trip_s`. `up`, `down`:
    transfer rates in bytes/s, or None if the peer granted no transfer. `seen`: this peer's address as seen by the
    remote peer, or "" if it is unknown.
    """

    round_trip_s: float
    clock_ahead_s: float
    up: float | None
    down: float | None
    seen: str


class Probes:
    """Answers probes. `seen`: returns a remote peer's address as seen by this peer."""

    def __init__(self, transport: Transport, *, seen: Callable[[str], Awaitable[str]]) -> None:
        self._transport = transport
        self._seen = seen
        self._bucket = Bucket(Rate(MINUTE_BYTES, MINUTE_BYTES / 60), loop_s)

    async def serve(self) -> None:
        await self._transport.serve(PROTOCOL, allowed=anybody, handler=self._answer)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        async with limit(MEASURE_S):
            wanted = _count(request.get("bytes"))
            granted = wanted if self._bucket.take(wanted) else 0
            await stream.send_object({"clock": time.time(), "bytes": granted, "seen": await self._seen(remote)})
            for _ in range(PINGS):
                await stream.receive_object()
                await stream.send_object({"clock": time.time()})
            if granted:
                await _take(stream, granted)
                await stream.send_object({})
                await stream.receive_object()
                await _give(stream, granted)
            await stream.ended()


async def measure(transport: Transport, peer_id: str) -> Measured:
    """Probe a peer, and return the result. Raises Unreachable, BrokenStream (invalid answer) or TimeoutError."""
    async with limit(MEASURE_S), transport.open_stream(peer_id, PROTOCOL) as stream:
        await stream.send_object({"bytes": PROBE_BYTES})
        answer = await stream.receive_object()
        granted, seen = _count(answer.get("bytes")), answer.get("seen")
        round_trip_s, ahead_s = min([await _ping(stream) for _ in range(PINGS)])
        up = down = None
        if granted:
            up, down = await _up(stream, granted, round_trip_s), await _down(stream, granted, round_trip_s)
        return Measured(round_trip_s, ahead_s, up, down, _text(seen))


async def round_trip_to(transport: Transport, peer_id: str) -> float:
    """Return the round-trip time to a peer in seconds, the shortest of PINGS.

    Raises Unreachable, BrokenStream or TimeoutError if there is no valid answer.
    """
    async with limit(OPEN_S), transport.open_stream(peer_id, PROTOCOL) as stream:
        await stream.send_object({"bytes": 0})
        await stream.receive_object()
        return min([await _ping(stream) for _ in range(PINGS)])[0]


async def clock_of(transport: Transport, peer_id: str) -> float:
    """Return a peer's clock time, in seconds since 1970.

    Raises Unreachable, BrokenStream or TimeoutError if there is no valid answer, or TurnedAway (a BrokenStream) if the
    peer refuses this peer.
    """
    async with limit(OPEN_S), transport.open_stream(peer_id, PROTOCOL) as stream:
        await stream.send_object({"bytes": 0})
        return _time((await stream.receive_object()).get("clock"))


async def _ping(stream: Stream) -> tuple[float, float]:
    """Return the round-trip time, and by how much the remote clock is ahead of the local clock, both in seconds.

    Assumes that a message takes equally long in both directions.
    """
    began_s, own_clock = _now_s(), time.time()
    await stream.send_object({})
    clock = _time((await stream.receive_object()).get("clock"))
    round_trip_s = _now_s() - began_s
    return round_trip_s, clock - own_clock - round_trip_s / 2


async def _up(stream: Stream, count: int, round_trip_s: float) -> float:
    began_s = _now_s()
    await _give(stream, count)
    await stream.receive_object()
    return _rate(count, _now_s() - began_s - round_trip_s)


async def _down(stream: Stream, count: int, round_trip_s: float) -> float:
    began_s = _now_s()
    await stream.send_object({})
    await _take(stream, count)
    return _rate(count, _now_s() - began_s - round_trip_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _rate(count: int, took_s: float) -> float:
    return count / max(took_s, 1e-4)


async def _give(stream: Stream, count: int) -> None:
    for start in range(0, count, PIECE_BYTES):
        await stream.write(bytes(min(PIECE_BYTES, count - start)))
    await stream.write(END_MARK)


async def _take(stream: Stream, count: int) -> None:
    async for _ in stream.pieces(count):
        pass


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= PROBE_BYTES:
        raise Unreadable(f"a probe must request 0 to {PROBE_BYTES} bytes")
    return value


def _time(value: object) -> float:
    if not isinstance(value, float) or not math.isfinite(value):
        raise Unreadable("the answer to a probe does not contain a valid time")
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= MAX_SEEN and value.isprintable() else ""
