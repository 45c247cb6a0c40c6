"""Ask each peer for its payload of the current round until the payload is stored or rejected.

    asked -> no answer, or a broken stream    ask again
          -> past the round without one       the peer is ahead: fetch its commits
          -> its payload                      download it; reject it if too large, not signed, or of another hash
    landed -> cannot be decoded, or its norm is far from the others'     reject it

A peer whose payload is rejected has none in this round, and is asked again in the next. `penalties` (readmission.py)
counts the rejections. `gone` holds the peers that the last attempt in this round could not reach: the round does not
wait for them.
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
    """The payload requests of the current round, one task per peer.

    Args:
        ahead: called with the name of a peer that is past the round.
        act: called with an event when a peer is unreachable.
    """

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
        self.running: dict[str, asyncio.Task[None]] = {}  # by peer, for the current round; includes finished tasks
        self._ahead, self._act = ahead, act

    def ask_all(self, number: int, peers: Iterable[str]) -> None:
        """Ask those of these peers for their payload that were not asked in this round yet."""
        for peer in peers:
            if peer not in self.running:
                self.running[peer] = asyncio.create_task(self.ask(number, peer))

    def end_round(self) -> None:
        """Stop all requests, because the round is over."""
        for task in self.running.values():
            task.cancel()
        self.running = {}
        self.gone.clear()

    async def ask(self, number: int, peer: str) -> None:
        """Ask a peer until its payload of this round is stored or rejected. Cancelled at the end of the round."""
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
                    self._act(lambda machine: [])  # any event makes the runner check the round
                logger.debug("round %d: asking %s for its payload failed: %s", number, peer, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S[1])

    async def unusable(self, number: int, reasons: Mapping[str, str]) -> None:
        """Penalize peers whose payloads could not be used when the round landed. `reasons`: peer -> reason."""
        for peer, reason in reasons.items():
            self._pulls.refuse(peer, f"round {number}: {reason}")
            self.penalties.unusable(peer, number)

    async def _get(self, number: int, one: Participant) -> bool:
        """Download a peer's payload. Return whether it is now stored or rejected; if neither, ask the peer again."""
        await asyncio.wait([self._pulls.start(number, one, [one.peer])])
        if (number, one) in self._store:
            self.penalties.good(one.peer, number)
            return True
        lied = self._bulk.reputation.sent_wrong_bytes(id_of(one.peer), one.digest)
        if lied:
            self._pulls.refuse(one.peer, f"round {number}: its payload does not have the sha256 that it stated")
        if lied or self._pulls.refused(number, one):
            self.penalties.refused(one.peer, number)
            return True
        return False
