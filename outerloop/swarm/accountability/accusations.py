"""Exchange of evidence against peers (evidence.py): send new evidence to all peers, and poll them for theirs.

{evidence: true}, then the evidence as a separate map   ->                            a notice; no answer
{}                                                      ->   <- {count}, then each piece of evidence as a separate map

Each peer checks evidence itself, so the sender need not be trusted. A peer that sends evidence that proves nothing is
itself lying, and no further evidence from it is checked. So a remote peer can make this peer check at most one false
piece of evidence, plus one true piece per known peer. A remote peer may also create keys and send true evidence against
them: each of the first MAX_OUTSIDERS keys (expulsion.py) costs this peer a write and a message to all peers, and
further keys cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

import msgpack

from outerloop.swarm.access.access_control import EXPELLED
from outerloop.swarm.accountability.evidence import MAX_BYTES, Evidence, guilty
from outerloop.swarm.accountability.expulsion import MAX_EXPELLED, ExpelledPeers
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable, protocol_name
from outerloop.swarm.timeouts import HISTORY_S, SEND_S, limit
from outerloop.swarm.validation import MalformedMessage, checked_int, id_of

logger = logging.getLogger(__name__)
AROUND_S = 10.0
"""Pause between two polls. Each poll goes to one random peer, so this peer sends six polls per minute."""


class Accusations(RpcService):
    """Exchanges evidence with other peers. Any peer may request evidence, because evidence is self-certifying.

    `names` returns id -> name of the peers that may take part. `on_own` is called with evidence that proves an
    offence of this peer's own key. `on_other` is called after another peer has been expelled.
    """

    service = EXPELLED

    def __init__(
        self,
        transport: Transport,
        expelled: ExpelledPeers,
        *,
        run: str,
        names: Callable[[], Mapping[str, str]],
        on_own: Callable[[Evidence], None],
        on_other: Callable[[], None],
    ) -> None:
        super().__init__(transport, run=run)
        self._expelled, self._names = expelled, names
        self._run, self._on_own, self._on_other = run, on_own, on_other
        self._random = random.Random(transport.peer_id)
        self._false: set[str] = set()  # ids of peers that sent evidence that proves nothing
        self._sending = BackgroundTasks()

    async def accuse(self, evidence: Evidence, *, received_from: str = "") -> bool:
        """Expel the accused and notify the other peers if the evidence is new and valid. Return whether it is.

        Valid evidence against this peer itself is only reported to `on_own`.
        """
        if id_of(evidence.peer) == self._transport.peer_id:
            return self._confess(evidence)
        if not await self._expelled.convict(evidence):
            return False
        self._on_other()
        for peer in self._others():
            if peer != received_from:
                self._sending.start(self._send(peer, evidence))
        return True

    async def ask_around(self) -> None:
        """Poll random peers until cancelled, to get evidence that was sent while this peer was away."""
        while True:
            if others := self._others():
                await self._ask(self._random.choice(others))
            await asyncio.sleep(AROUND_S)

    def _confess(self, evidence: Evidence) -> bool:
        """Check evidence against this peer itself. If it is valid, report it to `on_own` and return True."""
        proven = bool(guilty(evidence, self._transport.trust.signatures))
        if proven:
            self._on_own(evidence)
        return proven

    async def _ask(self, peer: str) -> None:
        try:
            for evidence in await ask(self._transport, self._run, peer):
                await self._receive_evidence(peer, evidence)
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("could not fetch the list of expelled peers from %s: %s", peer, error)

    async def _send(self, peer: str, evidence: Evidence) -> None:
        try:
            async with limit(SEND_S), self._stream_to(peer) as stream:
                await stream.send_object({"evidence": True})
                await stream.send(msgpack.packb(evidence.to_map()))
                await stream.ended()
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s did not receive the evidence against %s: %s", peer, evidence.peer, error)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        if request.get("evidence") is True:
            if remote in self._names():
                await self._receive_evidence(remote, await _receive(stream))
            return
        known = self._expelled.evidence
        await stream.send_object({"count": len(known)})
        for evidence in known:
            await stream.send(msgpack.packb(evidence.to_map()))
        await stream.ended()

    async def _receive_evidence(self, remote: str, evidence: Evidence) -> None:
        accused = id_of(evidence.peer)
        if remote in self._false or accused not in self._names() or not self._expelled.wants(evidence):
            return
        if not await self.accuse(evidence, received_from=remote) and self._expelled.wants(evidence):
            self._false.add(remote)
            why = f"accuses {evidence.peer} with evidence that proves nothing"
            self._transport.trust.rejections.note("ballots", self._names().get(remote, remote), why)

    def _others(self) -> list[str]:
        """Return the ids of the other allowed peers, sorted."""
        allow = self._transport.trust.allow
        return sorted(peer for peer in self._names() if peer != self._transport.peer_id and peer in allow)


async def ask(transport: Transport, run: str, peer: str) -> list[Evidence]:
    """Fetch the evidence behind all expulsions known to `peer` (a peer id), and return it unchecked.

    Raises BrokenStream, Unreachable or TimeoutError if the peer does not send a valid answer.
    """
    async with limit(HISTORY_S), transport.open_stream(peer, protocol_name(run, EXPELLED)) as stream:
        await stream.send_object({})
        try:
            answer = await stream.receive_object()
            count = checked_int(answer.get("count"), "the number of pieces of evidence", maximum=MAX_EXPELLED)
        except MalformedMessage as error:
            raise Unreadable(str(error)) from error
        return [await _receive(stream) for _ in range(count)]


async def _receive(stream: Stream) -> Evidence:
    """Receive one piece of evidence. Raises Unreadable if it is malformed, or BrokenStream if the stream fails."""
    try:
        return Evidence.from_map(msgpack.unpackb(await stream.receive(at_most=MAX_BYTES)))
    except ValueError as error:  # all errors of msgpack and validation.py are ValueErrors
        raise Unreadable(f"unreadable evidence: {error}") from error
