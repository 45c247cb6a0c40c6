"""Gossip rounds over the network, without a barrier or a leader.

In each round, a peer enters the pool of ready peers, takes a paired or a solo step, and leaves the pool. This module
connects the other modules and applies the timeouts: pairing.py chooses partners, pair.py holds the state of a pair,
handshake.py exchanges the payloads, pair_outcomes.py asks for decisions that were lost, and ready_broadcast.py
announces that this peer is ready. A frozen or lost partner costs at most one timeout; then this peer finds another
partner or takes a solo step.

The two peers of a pair may be in rounds with different numbers. Each contribution carries its sender's round.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from outerloop.swarm.gossip.handshake import Offer, as_acceptor, as_proposer, new_token, token_of
from outerloop.swarm.gossip.pair import Pair, PairState
from outerloop.swarm.gossip.pair_outcomes import PairOutcomes
from outerloop.swarm.gossip.pairing import ApplyPair, Pairing, ProposePair, StayAlone
from outerloop.swarm.gossip.partner_policy import Partners, RandomPartners
from outerloop.swarm.gossip.ready_broadcast import ReadyBroadcast
from outerloop.swarm.membership.formation import Formation
from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import Request, Transport, Unreachable, protocol_name
from outerloop.swarm.timeouts import ANSWER_S, TURN_S, limit
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.content_store import ContentStore
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.types import Contribution, Round

logger = logging.getLogger(__name__)
MAX_NOTIFIED = 16  # maximum number of members (drawn at random) notified per round; limits traffic in a large swarm
MIN_TURNS = 8  # minimum average number of turns that a peer gets before it times out
LOST = (BrokenStream, Unreachable, ContentUnavailable, TimeoutError)
"""Errors that mean that the partner is unreachable or frozen."""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class _PoolEntry:
    """This peer's stay in the pool for one round, in which it looks for a partner.

    `landing`: result of the round: the partner's contribution, or None for a solo step. `since_s`: time of entering
    the pool. `paired_s`: time at which the current pair was accepted, or 0 without a pair.
    """

    offer: Offer
    landing: asyncio.Future[Contribution | None]
    since_s: float = field(default_factory=_now_s)
    paired_s: float = 0.0
    proposals: BackgroundTasks = field(default_factory=BackgroundTasks)


class GossipRunner:
    """Runs one peer's gossip rounds one at a time; rounds that are started meanwhile are queued.

    deadline_s       maximum duration of a pair, from the proposal to the decision
    max_blob_bytes   maximum size of a partner's payload

    Counters since the start:

    solo_rounds         rounds with a solo step
    dropped_pairs       pairs that failed after acceptance
    one_sided_rounds    dropped pairs that turned out to have been applied by the partner
    idle_s              time in the pool without a partner, in seconds
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
        self._protocol = protocol_name(run, "pair")
        self._deadline_s = deadline_s
        self._max_blob_bytes = max_blob_bytes
        self._draw = draw or random.Random()
        self._notices = ReadyBroadcast(transport, run=run, allowed=membership.__contains__, on_notice=self._on_notice)
        self._one_round = asyncio.Lock()
        self._outcomes = PairOutcomes(transport, run=run, allowed=membership.__contains__)
        self._entry: _PoolEntry | None = None
        self._pairing = Pairing(transport.peer_id, RandomPartners(()), draw=self._draw, new_token=new_token)
        self.solo_rounds = 0
        self.dropped_pairs = 0
        self.idle_s = 0.0

    @property
    def one_sided_rounds(self) -> int:
        return self._outcomes.one_sided

    @property
    def pair(self) -> Pair | None:
        """Return the open pair that this peer has proposed or accepted, or None if there is none."""
        return self._pairing.pair

    async def serve(self) -> None:
        """Start answering requests. All proposals are turned down until `begin` is called."""
        await self._notices.serve()
        await self._outcomes.serve()
        await self._transport.serve(self._protocol, allowed=self._members.__contains__, handler=self._answer)

    def begin(self, partners: Partners) -> None:
        """Set the partner policy, once the members are known."""
        self._pairing.partners = partners

    def strike(self, peer: str) -> None:
        """Exclude a partner (peer id) whose payload was unusable from this peer's next rounds."""
        self._pairing.strike(peer)

    async def run_round(self, round: Round, blob: bytes, *, timeout_s: float) -> list[Contribution]:
        """Run one round. Return the pair's two contributions, sorted by name, or only this peer's for a solo step."""
        async with self._one_round:
            offer = Offer(round, self._store.put(blob), len(blob))
            try:
                partner = await self._through_the_pool(offer, timeout_s)
            finally:
                self._store.drop(offer.sha)
        own = Contribution(self._members.names[self._transport.peer_id], round, blob)
        self.solo_rounds += partner is None
        return sorted([own] if partner is None else [own, partner], key=lambda contribution: contribution.peer)

    async def _through_the_pool(self, offer: Offer, timeout_s: float) -> Contribution | None:
        entry = self._entry = _PoolEntry(offer, asyncio.get_running_loop().create_future())
        partners = self._pairing.partners.of(offer.round)
        notified = self._draw.sample(partners, min(MAX_NOTIFIED, len(partners)))
        self._do(entry, self._pairing.ready(offer.round))
        self._notices.send(notified, offer.round)
        turns = asyncio.create_task(self._take_turns(entry, timeout_s))
        try:
            return await entry.landing
        finally:
            turns.cancel()
            entry.proposals.cancel()
            self.idle_s += (entry.paired_s or _now_s()) - entry.since_s
            self._pairing.leave()
            self._entry = None
            self._notices.send(notified, None)

    async def _take_turns(self, entry: _PoolEntry, timeout_s: float) -> None:
        pause_s = min(TURN_S, timeout_s / MIN_TURNS)
        try:
            async with limit(timeout_s):
                while True:
                    await asyncio.sleep(self._draw.uniform(0, 2 * pause_s))
                    self._do(entry, self._pairing.turn())
        except TimeoutError:
            self._do(entry, self._pairing.time_out())

    def _do(self, entry: _PoolEntry, action: ProposePair | ApplyPair | StayAlone | None) -> None:
        """Perform an action of the pairing state machine, unless the round has ended."""
        if entry.landing.done():
            return
        match action:
            case ProposePair(pair):
                entry.proposals.start(self._propose(entry, pair))
            case ApplyPair(pair):
                entry.landing.set_result(self._contribution(pair))
            case StayAlone():
                entry.landing.set_result(None)

    async def _propose(self, entry: _PoolEntry, pair: Pair) -> None:
        """Run a pair that this peer has proposed."""
        with self._ending(entry, pair):
            try:
                async with limit(self._deadline_s), self._transport.open_stream(pair.partner, self._protocol) as stream:
                    await self._run_proposal(entry, pair, stream)
            except LOST as error:
                self._log_loss(pair, error)
            if pair.state is PairState.BOUND:
                await self._outcomes.learn(pair)

    async def _run_proposal(self, entry: _PoolEntry, pair: Pair, stream: Stream) -> None:
        await stream.send_object({"token": pair.token, **entry.offer.to_map()})
        answer = await stream.receive_object(patience_s=ANSWER_S)
        if "sha" not in answer:
            pair.turn_down(partner_ready=bool(answer.get("ready")))
        elif self._pairing.accepted(pair, (offer := Offer.from_map(answer)).round):
            entry.paired_s = _now_s()
            await as_proposer(stream, self._pull(pair, offer), pair)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        """Handle a proposal from another peer."""
        offer, token, entry = Offer.from_map(request), token_of(request), self._entry
        pair = self._pairing.asked(remote, token, offer.round)
        if entry is None or pair is None:
            await stream.send_object({"ready": self._pairing.is_looking})
        else:
            entry.paired_s = _now_s()
            with self._ending(entry, pair):
                await self._run_accepted(entry, pair, offer, stream)
            await stream.send_object({"applied": pair.state is PairState.APPLIED})
        await stream.ended()

    async def _run_accepted(self, entry: _PoolEntry, pair: Pair, offer: Offer, stream: Stream) -> None:
        """Run a pair that this peer has accepted, and decide whether it counts."""
        try:
            async with limit(self._deadline_s):
                await stream.send_object(entry.offer.to_map())
                payload = await as_acceptor(stream, self._pull(pair, offer))
        except LOST as error:
            self._log_loss(pair, error)
            return
        wanted = not entry.landing.done()
        pair.decide(payload, applied=self._outcomes.decisions.decide(pair.partner, pair.token, applied=wanted))

    @contextmanager
    def _ending(self, entry: _PoolEntry, pair: Pair) -> Iterator[None]:
        """End the pair when the block exits, even with an error, and continue the round."""
        try:
            yield
        finally:
            pair.lose()
            if pair.state is PairState.IN_DOUBT:
                self._outcomes.doubt(pair)
            if not entry.landing.done():
                self._count(entry, pair)
                self._do(entry, self._pairing.ended(pair))

    def _count(self, entry: _PoolEntry, pair: Pair) -> None:
        if pair.state in (PairState.DROPPED, PairState.IN_DOUBT):
            entry.paired_s = 0.0
            self.dropped_pairs += 1

    def _contribution(self, pair: Pair) -> Contribution:
        assert pair.round is not None and pair.payload is not None, "an applied pair must have a round and a payload"
        return Contribution(self._members.names[pair.partner], pair.round, pair.payload)

    def _log_loss(self, pair: Pair, error: Exception) -> None:
        why = str(error) or f"not finished within {self._deadline_s:g} s (exchange.deadline_s)"
        was_paired = pair.state not in (PairState.PROPOSED, PairState.TURNED_DOWN)
        logger.log(logging.WARNING if was_paired else logging.DEBUG, "lost partner %s: %s", pair.partner, why)

    def _pull(self, pair: Pair, offer: Offer) -> Coroutine[Any, Any, bytes]:
        return self._bulk.get(
            offer.sha, offer.length, [pair.partner], at_most=self._max_blob_bytes, timeout_s=self._deadline_s
        )

    def _on_notice(self, peer: str, round: Round | None) -> None:
        self._pairing.heard(peer, round)
        self._outcomes.resolve(peer)
