"""Offer this peer's payloads to the others, and report stored payloads to the agreement.

payload of the trainer -> signed for this round -> on disk -> offered (payload_requests.py) and reported as stored
"""

from __future__ import annotations

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.gather.payload_requests import PayloadRpc
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.gather.state_roots import StateRoots
from outerloop.swarm.transfer.signed_payload import offload, sign_payload


class OwnPayloads:
    """This peer's payloads: `rpc` offers them, `roots` knows the state of the run that they name."""

    def __init__(self, context: RoundContext, store: RoundStore, rpc: PayloadRpc, roots: StateRoots) -> None:
        self._context, self._store, self._rpc, self._roots = context, store, rpc, roots

    async def offer(self, number: int, blob: bytes) -> None:
        """Sign and store this peer's payload for a round, and offer it to the others.

        Does nothing if the round is over, or if this peer has signed a payload for it before, e.g. before a restart: it
        never signs a second one, on any chain.
        """
        own, chain = self._context.own, self._context.chain
        if self._store.has_signed(own, number) or number < chain.number:
            return
        session, state = self._context.session, await self._roots.named_in(number)

        def seal() -> tuple[bytes, Participant]:
            signatures = self._context.trust.signatures
            content = sign_payload(blob, signatures, session=session, number=number, peer=own, state=state)
            return content, Participant.of(own, content, state=state)

        content, participant = await offload(len(blob), seal)
        await self._store.put(number, participant, content)
        self._rpc.own.post(number, participant)
        self._context.report_stored(number, participant)

    def resume(self, number: int) -> None:
        """Report the stored payloads from this round on to the agreement, and offer this peer's own."""
        for known, participant in self._store.since(number):
            self._context.report_stored(known, participant)
            if participant.peer == self._context.own:
                self._rpc.own.post(known, participant)

    def begin_round(self, number: int) -> None:
        """Notify peers that request a payload of an earlier round that none follows, if this peer had none."""
        self._rpc.own.over(number - 1)

    def restart(self, number: int) -> None:
        """Follow another chain from this round on. The stored payloads may count in it."""
        self._rpc.own.take_back(number)
        self.resume(number)
