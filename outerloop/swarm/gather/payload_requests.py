"""Asking a peer for its payload of a round, until it is here or turned down because nobody can use it.

    asked -> nothing yet, or a broken stream    asked again
          -> has gone on without                it is ahead: its commits are fetched
          -> its payload                        pulled; refused when too large, not signed, or other bytes than said
    landed -> it cannot be decoded, or its norm is far from the others'     refused

Who is refused has no payload in this round, and is asked anew in the next; `penalties` remember how it was. `gone` are
those whom the last attempt of this round found no way to: nobody needs to wait for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.gather.payload_downloads import PayloadDownloads
from outerloop.swarm.gather.payload_rpc import PayloadRpc
from outerloop.swarm.gather.readmission import ReadmissionBackoff
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.gather.round_timers import Event
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import RETRY_S
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.validation import id_of

logger = logging.getLogger(__name__)
NETWORK_ERRORS = (BrokenStream, Unreachable, TimeoutError)


class PayloadRequests:
    """`ahead` is told of a peer that has gone on; `act` gets an event when somebody is out of reach."""

    def __init__(
        self,
        payloads: PayloadRpc,
        pulls: PayloadDownloads,
        store: RoundStore,
        bulk: Bulk,
        *,
        ahead: Callable[[str], None],
        act: Callable[[Event], None],
    ) -> None:
        self._payloads, self._pulls, self._store, self._bulk = payloads, pulls, store, bulk
        self.penalties = ReadmissionBackoff()
        self.gone: set[str] = set()
        self.running: dict[str, asyncio.Task[None]] = {}  # by peer, of the round at hand; those that are done too
        self._ahead, self._act = ahead, act

    def ask_all(self, number: int, peers: Iterable[str]) -> None:
        """Ask each of these that was not asked for its payload of this round yet."""
        for peer in peers:
            if peer not in self.running:
                self.running[peer] = asyncio.create_task(self.ask(number, peer))

    def end_round(self) -> None:
        """Stop asking: the next round begins."""
        for task in self.running.values():
            task.cancel()
        self.running = {}
        self.gone.clear()

    async def ask(self, number: int, peer: str) -> None:
        """Until its payload of this round is here or refused; the round's end ends it."""
        pause_s = RETRY_S[0]
        while True:
            try:
                one = await self._payloads.ask(peer, number, reached=partial(self.gone.discard, peer))
                if one is None:
                    self._ahead(peer)
                elif await self._get(number, one):
                    return
            except NETWORK_ERRORS as error:
                if isinstance(error, Unreachable):
                    self.gone.add(peer)
                    self._act(lambda machine: [])  # and then a look at the round
                logger.debug("round %d: %s does not tell its payload: %s", number, peer, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S[1])

    async def unusable(self, number: int, reasons: Mapping[str, str]) -> None:
        """Peer -> why what it signed for a round that has landed does not count."""
        for peer, reason in reasons.items():
            self._pulls.refuse(peer, f"round {number}: {reason}")
            self.penalties.unusable(peer, number)

    async def _get(self, number: int, one: Participant) -> bool:
        """Whether there is nothing more to be had of this peer."""
        await asyncio.wait([self._pulls.start(number, one, [one.peer])])
        if (number, one) in self._store:
            self.penalties.good(one.peer, number)
            return True
        lied = self._bulk.reputation.lied(id_of(one.peer), one.digest)
        if lied:
            self._pulls.refuse(one.peer, f"round {number}: its payload is not what it says of it")
        if lied or self._pulls.refused(number, one):
            self.penalties.refused(one.peer, number)
            return True
        return False
