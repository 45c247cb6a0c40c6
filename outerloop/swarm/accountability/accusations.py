"""Evidence against peers (evidence.py) on its way: told to all once it is new, and asked for now and then.

{evidence: true}, then the evidence as a map of its own ->                            told; no answer
{}                                                      ->   <- {count: how many}, then each as a map of its own

Each peer checks for itself, so it does not matter who tells. Who tells what proves nothing lies itself: nothing more of
it is checked. So a remote can make this peer check one false piece of evidence, and a true one for each known peer:
those of its own keys cost a write and a message to all for the first few, and nothing later (expelled.MAX_OUTSIDERS).
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
from outerloop.swarm.p2p.transport import Request, Transport, Unreachable, anybody
from outerloop.swarm.timeouts import HISTORY_S, SEND_S, limit
from outerloop.swarm.validation import MalformedMessage, id_of, whole

logger = logging.getLogger(__name__)
AROUND_S = 10.0
"""Pause between two questions to one of the others, drawn anew: who starts or was away has asked most in a minute."""


class Accusations:
    """`names`: id -> name of the peers that may take part.

    `on_own` is told what this peer's own key is guilty of, `on_other` that another one has been expelled.
    """

    def __init__(
        self,
        transport: Transport,
        expelled: ExpelledPeers,
        *,
        run: str,
        names: Callable[[], Mapping[str, str]],
        on_own: Callable[[str], None],
        on_other: Callable[[], None],
    ) -> None:
        self._transport, self._expelled, self._names = transport, expelled, names
        self._run, self._on_own, self._on_other = run, on_own, on_other
        self._random = random.Random(transport.peer_id)
        self._false: set[str] = set()  # ids of those who told what proves nothing
        self._telling: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Answer whoever asks: what is told proves itself, and people look on (commands/status.py)."""
        await self._transport.serve(protocol(self._run), allowed=anybody, handler=self._answer)

    async def accuse(self, evidence: Evidence, *, told_by: str = "") -> bool:
        """Expel the accused and tell the others, if this is new and holds. Returns whether it is and does."""
        if id_of(evidence.peer) == self._transport.peer_id:
            return self._confess(evidence)
        if not await self._expelled.convict(evidence):
            return False
        self._on_other()
        for peer in self._others():
            if peer != told_by:
                task = asyncio.create_task(self._tell(peer, evidence))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)
        return True

    async def ask_around(self) -> None:
        """Ask one of the others after the other, for ever: what was told while this peer was away is not lost."""
        while True:
            if others := self._others():
                await self._ask(self._random.choice(others))
            await asyncio.sleep(AROUND_S)

    def _confess(self, evidence: Evidence) -> bool:
        """Who holds evidence against this peer itself is right to expel it."""
        proven = bool(guilty(evidence, self._transport.trust.signatures))
        if proven:
            self._on_own(evidence.why)
        return proven

    async def _ask(self, peer: str) -> None:
        try:
            for evidence in await ask(self._transport, self._run, peer):
                await self._hear(peer, evidence)
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s does not tell whom it has expelled: %s", peer, error)

    async def _tell(self, peer: str, evidence: Evidence) -> None:
        try:
            async with limit(SEND_S), self._transport.open_stream(peer, protocol(self._run)) as stream:
                await stream.send_object({"evidence": True})
                await stream.send(msgpack.packb(evidence.to_map()))
                await stream.ended()
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s did not hear of %s: %s", peer, evidence.peer, error)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        if request.get("evidence") is True:
            if remote in self._names():
                await self._hear(remote, await _receive(stream))
            return
        known = self._expelled.evidence
        await stream.send_object({"count": len(known)})
        for evidence in known:
            await stream.send(msgpack.packb(evidence.to_map()))
        await stream.ended()

    async def _hear(self, remote: str, evidence: Evidence) -> None:
        accused = id_of(evidence.peer)
        if remote in self._false or accused not in self._names() or not self._expelled.wants(evidence):
            return
        if not await self.accuse(evidence, told_by=remote) and self._expelled.wants(evidence):
            self._false.add(remote)
            why = f"accuses {evidence.peer} with what it has not signed"
            self._transport.trust.refusals.note("ballots", self._names().get(remote, remote), why)

    def _others(self) -> list[str]:
        """Ids of those whom this peer deals with, in order."""
        allow = self._transport.trust.allow
        return sorted(peer for peer in self._names() if peer != self._transport.peer_id and peer in allow)


def protocol(run: str) -> str:
    return f"outerloop/1/{run}{EXPELLED}"


async def ask(transport: Transport, run: str, peer: str) -> list[Evidence]:
    """What this peer (its id) has expelled others for, not checked yet.

    Raises BrokenStream, Unreachable, TimeoutError.
    """
    async with limit(HISTORY_S), transport.open_stream(peer, protocol(run)) as stream:
        await stream.send_object({})
        try:
            count = whole((await stream.receive_object()).get("count"), "a count of evidence", most=MAX_EXPELLED)
        except MalformedMessage as error:
            raise Unreadable(str(error)) from error
        return [await _receive(stream) for _ in range(count)]


async def _receive(stream: Stream) -> Evidence:
    """Raises BrokenStream; Unreadable for what is no evidence."""
    try:
        return Evidence.from_map(msgpack.unpackb(await stream.receive(at_most=MAX_BYTES)))
    except ValueError as error:  # every way in which msgpack and validation.py refuse is one
        raise Unreadable(f"unreadable evidence: {error}") from error
