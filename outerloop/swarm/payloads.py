"""Payloads: every member pulls every other member's bytes directly from their owner, who answers once it has them.

A pull:   {number, fragment} ->   <- {sha, length}, or {} when it is gone;   then the content of that sha256 (bulk.py)

An all-gather by pulling has no leader and no order of arrival: P (P - 1) transfers of one payload each, and a peer that
is early waits for the answer. It receives P - 1 payloads a round, the least an all-gather can.
"""

from __future__ import annotations

from outerloop.swarm.board import Board
from outerloop.swarm.bulk import Bulk
from outerloop.swarm.framing import BrokenStream, Stream
from outerloop.swarm.holders import Unobtainable
from outerloop.swarm.membership import Membership
from outerloop.swarm.store import Store
from outerloop.swarm.timeouts import limit
from outerloop.swarm.transport import Request, Transport, persist
from outerloop.types import Round

ROUNDS_KEPT = 2  # for pullers that are slow: nobody can be two rounds behind when a round needs everybody


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
    """Own payloads to give, others' to get."""

    def __init__(
        self, transport: Transport, membership: Membership, *, run: str, max_blob_bytes: int, wait_s: float
    ) -> None:
        self._transport = transport
        self._membership = membership
        self._protocol = f"outerloop/1/{run}/payload"
        self._max_blob_bytes = max_blob_bytes
        self._wait_s = wait_s
        self._own: Board[Request] = Board(keep=ROUNDS_KEPT)  # what this peer answers
        self._store = Store()
        self._bulk = Bulk(transport, self._store, run=run, allowed=membership.__contains__)

    @property
    def bytes_sent(self) -> int:
        """Every copy counts."""
        return self._bulk.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._bulk.bytes_received

    async def serve(self) -> None:
        await self._bulk.serve()
        await self._transport.serve(self._protocol, allowed=self._membership.__contains__, handler=self._tell)

    def offer(self, round: Round, blob: bytes) -> None:
        told = {"sha": self._store.put(blob), "length": len(blob)}
        for past in self._own.post(round, told):
            self._store.drop(past["sha"])

    def offers(self, round: Round) -> bool:
        """Whether this round's payload is still kept."""
        return self._own.get(round) is not None

    async def pull(self, owner: str, round: Round) -> bytes:
        """One member's payload, as soon as it has one. Raises Refused, PeerGone."""
        name = self._membership.names[owner]
        sha, length = await persist(lambda: self._ask(owner, round), peer=name)
        try:
            return await self._bulk.get(sha, length, [owner], at_most=self._max_blob_bytes, timeout_s=self._wait_s)
        except Unobtainable as error:
            raise Refused(f"{name} could not give its payload: {error}") from error

    async def _ask(self, owner: str, round: Round) -> tuple[bytes, int]:
        async with self._transport.open_stream(owner, self._protocol) as stream:
            await stream.send_object(request_for(round))
            told = await stream.receive_object(patience_s=self._wait_s)
        if not told:
            raise Refused(f"{self._membership.names[owner]} has no payload for it any more")
        sha, length = told.get("sha"), told.get("length")
        if not isinstance(sha, bytes) or not isinstance(length, int):
            raise BrokenStream("an answer without a sha256 and a length")
        return sha, length

    async def _tell(self, remote: str, request: Request, stream: Stream) -> None:
        async with limit(self._wait_s):
            told = await self._own.read(round_of(request))
        await stream.send_object(told or {})
        await stream.ended()
