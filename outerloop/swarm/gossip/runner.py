"""Gossip rounds over the network: enter the pool, take a paired or a solo step, leave it. No barrier, no leader.

This module connects the other parts and their timeouts: pairing.py chooses partners, handshake.py and pair_outcomes.py
move the payloads and make both peers of a pair end the same way, ready_broadcast.py announces which peers are ready. A
frozen or lost partner costs at most one timeout; then this peer finds another partner or takes a solo step.

The two peers of a pair may be in rounds with different numbers. Each contribution carries its sender's round.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from outerloop.swarm.gossip.handshake import Offer, ProposalState, as_acceptor, as_proposer, token_of
from outerloop.swarm.gossip.pair_outcomes import PairOutcomes
from outerloop.swarm.gossip.pairing import Pairing, ProposePair, StayAlone
from outerloop.swarm.gossip.partner_policy import Partners, RandomPartners
from outerloop.swarm.gossip.ready_broadcast import ReadyBroadcast
from outerloop.swarm.membership.formation import Formation
from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.p2p.transport import Request, Transport, Unreachable
from outerloop.swarm.timeouts import ANSWER_S, TURN_S, limit
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.content_store import ContentStore
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.types import Contribution, Round

logger = logging.getLogger(__name__)
TOLD = 16  # members notified when a peer is ready, drawn again each round: notices stay few in a large swarm
TURNS = 8  # a peer gets at least this many turns on average before its patience is over
LOST = (BrokenStream, Unreachable, ContentUnavailable, TimeoutError)
"""Errors that mean that a partner is lost."""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class _Seat:
    """This peer's entry in the pool for one round. `met`: the partner's contribution; None: a solo step."""

    offer: Offer
    met: asyncio.Future[Contribution | None]
    since_s: float = field(default_factory=_now_s)
    paired_s: float = 0.0
    proposals: set[asyncio.Task[None]] = field(default_factory=set)


class GossipRunner:
    """Runs one peer's gossip rounds one at a time; rounds that are started meanwhile are queued.

    deadline_s       longest time that a pair may take from the proposal to the decision
    max_blob_bytes   largest payload that is accepted from a partner

    Counters since the start: `solo_rounds`; `dropped_pairs`, pairs that failed after acceptance; `one_sided_rounds`,
    dropped pairs that the partner applied, counted when this peer learns of it; `idle_s`, seconds in the pool without a
    partner.
    """

    def __init__(
        self,
        transport: Transport,
        membership: Formation,
        store: ContentStore,
        bulk: Bulk,
        *,
        run: str,
        deadline_s: float,
        max_blob_bytes: int,
        draw: random.Random | None = None,
    ) -> None:
        self._transport = transport
        self._members = membership
        self._store = store
        self._bulk = bulk
        self._protocol = f"outerloop/1/{run}/pair"
        self._deadline_s = deadline_s
        self._max_blob_bytes = max_blob_bytes
        self._draw = draw or random.Random()
        self._notices = ReadyBroadcast(transport, run=run, allowed=membership.__contains__, hear=self._heard)
        self._line = asyncio.Lock()
        self._verdicts = PairOutcomes(transport, run=run, allowed=membership.__contains__)
        self._seat: _Seat | None = None
        self._pairing = Pairing(transport.peer_id, RandomPartners(()), draw=self._draw)
        self.solo_rounds = 0
        self.dropped_pairs = 0
        self.idle_s = 0.0

    @property
    def one_sided_rounds(self) -> int:
        return self._verdicts.one_sided

    async def serve(self) -> None:
        """Start to answer requests. Every proposal is turned down until `begin` is called."""
        await self._notices.serve()
        await self._verdicts.serve()
        await self._transport.serve(self._protocol, allowed=self._members.__contains__, handler=self._answer)

    def begin(self, partners: Partners) -> None:
        """Set the partner policy, once the members are known."""
        self._pairing.partners = partners

    def strike(self, peer: str) -> None:
        """Exclude a partner (peer id) whose payload was unusable for some rounds."""
        self._pairing.strike(peer)

    async def meet(self, round: Round, blob: bytes, *, patience_s: float) -> list[Contribution]:
        """Run one round. Return the contributions of the pair in the order of names, or this peer's alone."""
        async with self._line:
            offer = Offer(round, self._store.put(blob), len(blob))
            try:
                met = await self._through_the_pool(offer, patience_s)
            finally:
                self._store.drop(offer.sha)
        own = Contribution(self._members.names[self._transport.peer_id], round, blob)
        self.solo_rounds += met is None
        return sorted([own] if met is None else [own, met], key=lambda contribution: contribution.peer)

    async def _through_the_pool(self, offer: Offer, patience_s: float) -> Contribution | None:
        seat = self._seat = _Seat(offer, asyncio.get_running_loop().create_future())
        partners = self._pairing.partners.of(offer.round)
        told = self._draw.sample(partners, min(TOLD, len(partners)))
        self._do(seat, self._pairing.ready(offer.round))
        self._notices.tell(told, offer.round)
        turns = asyncio.create_task(self._take_turns(seat, patience_s))
        try:
            return await seat.met
        finally:
            for task in (turns, *seat.proposals):
                task.cancel()
            self.idle_s += (seat.paired_s or _now_s()) - seat.since_s
            self._pairing.leave()
            self._seat = None
            self._notices.tell(told, None)

    async def _take_turns(self, seat: _Seat, patience_s: float) -> None:
        pause_s = min(TURN_S, patience_s / TURNS)
        try:
            async with limit(patience_s):
                while True:
                    await asyncio.sleep(self._draw.uniform(0, 2 * pause_s))
                    self._do(seat, self._pairing.turn())
        except TimeoutError:
            self._do(seat, self._pairing.tire())

    def _do(self, seat: _Seat, output: ProposePair | StayAlone | None) -> None:
        """Carry out an action of the pairing state machine."""
        if isinstance(output, StayAlone) and not seat.met.done():
            seat.met.set_result(None)
        if isinstance(output, ProposePair):
            _keep(seat.proposals, self._propose(seat, output.to))

    async def _propose(self, seat: _Seat, to: str) -> None:
        pledge = ProposalState()
        try:
            await self._offer(seat, to, pledge)
            if pledge.bound:
                pledge.applied = await self._verdicts.last_word(to, pledge.token)
        finally:
            if pledge.bound:
                self._verdicts.doubt(to, pledge.token)
            if pledge.theirs is not None:
                self._end(seat, to, pledge.theirs, pledge.blob if pledge.applied else None)
            elif self._seat is seat:
                self._do(seat, self._pairing.turned_down(to, ready=pledge.ready))

    async def _offer(self, seat: _Seat, to: str, pledge: ProposalState) -> None:
        try:
            async with limit(self._deadline_s), self._transport.open_stream(to, self._protocol) as stream:
                await stream.send_object({"token": pledge.token, **seat.offer.to_map()})
                answer = await stream.receive_object(patience_s=ANSWER_S)
                pledge.ready = bool(answer.get("ready"))
                theirs = Offer.from_map(answer) if "sha" in answer else None
                if theirs is not None and self._pairing.agreed(to):
                    seat.paired_s, pledge.theirs = _now_s(), theirs
                    await as_proposer(stream, self._pull(to, theirs), pledge)
        except LOST as error:
            self._tell_loss(to, error, paired=pledge.theirs is not None)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        """Handle a proposal from another peer."""
        theirs, token, seat = Offer.from_map(request), token_of(request), self._seat
        if seat is None or not self._pairing.asked(remote, theirs.round):
            await stream.send_object({"ready": seat is not None and not seat.paired_s})
            await stream.ended()
            return
        seat.paired_s, blob = _now_s(), None
        try:
            blob = await self._accept(seat, remote, theirs, token, stream)
        finally:
            self._end(seat, remote, theirs, blob)
        await stream.send_object({"applied": blob is not None})
        await stream.ended()

    async def _accept(self, seat: _Seat, remote: str, theirs: Offer, token: bytes, stream: Stream) -> bytes | None:
        """Run an accepted proposal and decide. Return the proposer's payload if the pair counts, else None."""
        try:
            async with limit(self._deadline_s):
                await stream.send_object(seat.offer.to_map())
                blob = await as_acceptor(stream, self._pull(remote, theirs))
        except LOST as error:
            self._tell_loss(remote, error, paired=True)
            return None
        open_still = self._seat is seat and not seat.met.done()
        return blob if self._verdicts.decide(remote, token, applied=open_still) else None

    def _end(self, seat: _Seat, partner: str, theirs: Offer, blob: bytes | None) -> None:
        """End the pair: `blob` is the partner's payload, or None if the pair failed."""
        if self._seat is not seat or seat.met.done():
            return
        if blob is None:
            seat.paired_s = 0.0
            self.dropped_pairs += 1
            self._do(seat, self._pairing.broke(partner))
        else:
            self._pairing.met()
            seat.met.set_result(Contribution(self._members.names[partner], theirs.round, blob))

    def _tell_loss(self, partner: str, error: Exception, *, paired: bool) -> None:
        why = str(error) or f"not finished within {self._deadline_s:g} s (exchange.deadline_s)"
        logger.log(logging.WARNING if paired else logging.DEBUG, "lost partner %s: %s", partner, why)

    def _pull(self, owner: str, offer: Offer) -> Coroutine[Any, Any, bytes]:
        return self._bulk.get(
            offer.sha, offer.length, [owner], at_most=self._max_blob_bytes, timeout_s=self._deadline_s
        )

    def _heard(self, peer: str, round: Round | None) -> None:
        self._pairing.heard(peer, round)
        self._verdicts.heard(peer)


def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    """Start a task, and keep a reference to it until it is done."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
