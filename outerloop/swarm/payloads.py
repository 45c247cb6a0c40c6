"""Payloads: every member pulls every other member's bytes directly from their owner, who answers once it has them.

A pull, one stream:   {number, fragment} ->   <- {have: true}, then the payload (framing: length, pieces, sha256)

An all-gather by pulling has no leader and no order of arrival: P (P - 1) streams of one payload each, and a peer that
is early waits for the answer. It receives P - 1 payloads a round, the least an all-gather can.
"""

from __future__ import annotations

import asyncio
import hashlib

from outerloop.swarm.board import Board
from outerloop.swarm.framing import BrokenStream, Stream
from outerloop.swarm.membership import Membership
from outerloop.swarm.timeouts import limit
from outerloop.swarm.transport import Request, Transport, persist
from outerloop.types import Round

ROUNDS_KEPT = 2  # for pullers that are slow: nobody can be two rounds behind when a round needs everybody
PULLS_AT_ONCE = 8


class Refused(Exception):
    """A member answered, and the answer is no."""


def round_of(request: Request) -> Round:
    """The round that a request is about."""
    number, fragment = request.get("number"), request.get("fragment")
    if not isinstance(number, int) or not isinstance(fragment, int):
        raise BrokenStream(f"a request without a round: {request}")
    return Round(number, fragment)


def request_for(round: Round) -> Request:
    return {"number": round.number, "fragment": round.fragment}


class Payloads:
    """Own payloads to give, others' to get. `bytes_sent` and `bytes_received` count every copy."""

    def __init__(
        self, transport: Transport, membership: Membership, *, run: str, max_blob_bytes: int, wait_s: float
    ) -> None:
        self._transport = transport
        self._membership = membership
        self._protocol = f"outerloop/1/{run}/payload"
        self._max_blob_bytes = max_blob_bytes
        self._wait_s = wait_s
        self._own: Board[tuple[bytes, bytes]] = Board(keep=ROUNDS_KEPT)  # payload, sha256
        self._slots = asyncio.Semaphore(PULLS_AT_ONCE)
        self.bytes_sent = 0
        self.bytes_received = 0

    async def serve(self) -> None:
        await self._transport.serve(self._protocol, allowed=self._membership.__contains__, handler=self._give)

    def offer(self, round: Round, blob: bytes) -> None:
        self._own.post(round, (blob, hashlib.sha256(blob).digest()))

    def offers(self, round: Round) -> bool:
        """Whether this round's payload is still kept."""
        return self._own.get(round) is not None

    async def pull(self, owner: str, round: Round) -> bytes:
        """One member's payload, however long it takes. Raises Refused, PeerGone."""
        async with self._slots:
            return await persist(lambda: self._pull_once(owner, round), peer=self._membership.names[owner])

    async def _pull_once(self, owner: str, round: Round) -> bytes:
        async with self._transport.open_stream(owner, self._protocol) as stream:
            await stream.send_object(request_for(round))
            if not (await stream.receive_object(patience_s=self._wait_s)).get("have"):
                raise Refused(f"{self._membership.names[owner]} has no payload for it any more")
            return await stream.receive(at_most=self._max_blob_bytes, count=self._count_received)

    async def _give(self, remote: str, request: Request, stream: Stream) -> None:
        async with limit(self._wait_s):
            own = await self._own.read(round_of(request))
        await stream.send_object({"have": own is not None})
        if own is not None:
            await stream.send(own[0], digest=own[1], count=self._count_sent)
        await stream.ended()

    def _count_sent(self, count: int) -> None:
        self.bytes_sent += count

    def _count_received(self, count: int) -> None:
        self.bytes_received += count
