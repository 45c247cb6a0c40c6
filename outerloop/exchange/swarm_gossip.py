"""Gossip among the peers of a swarm, without collectives or barriers: peers pair up when they are ready.

In each round, a peer exchanges messages with one other peer, chosen at random. If no other peer becomes ready within a
fraction of the time that this peer spends on inner steps, it applies only its own update (a solo step). This module
provides an Exchange based on `outerloop.swarm.gossip`: runner.py runs rounds, pairing.py forms pairs, and handshake.py
exchanges the payloads of a pair. The two peers of a pair may be in rounds with different numbers; each contribution
contains its sender's round.

The members are the peers that were present at the start. A peer that dies costs its current partner one timeout and is
not chosen again. With pairing=scheduled, it costs `deadline_s` in every round for which it is drawn, because a partner
that is only slow must not be left out: the pairs would then not be the same in every run. At the end, each peer
averages the weights that it has fetched itself (final_gather.py).
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import CancelledError, Future, TimeoutError
from dataclasses import dataclass
from inspect import signature
from typing import Any

from outerloop.exchange.swarm import SwarmExchange, SwarmPending
from outerloop.swarm.gossip.final_gather import WAITS, FinalGather
from outerloop.swarm.gossip.pairing_timeout import PairingTimeout
from outerloop.swarm.gossip.partner_policy import Partners, RandomPartners, ScheduledPartners
from outerloop.swarm.gossip.runner import GossipRunner
from outerloop.swarm.membership.session import NodeOptions
from outerloop.swarm.timeouts import DHT_S, LINGER_S
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.content_store import ContentStore
from outerloop.swarm.validation import id_of
from outerloop.types import FIRST, Capabilities, Contribution, Refusals, Round, RoundFailed, UserError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GossipOptions(NodeOptions):
    """Options of SwarmGossip, in addition to those of the base class.

    pairing           "random": pairs of ready peers; "scheduled": pairs drawn from the seed, the same in every run
    seed              seed of scheduled pairs; must be equal on all peers
    patience          how long to wait for a partner, as a fraction of the time that this peer spends on inner steps
    least_patience_s  lower limit on this waiting time, in seconds
    most_patience_s   upper limit on this waiting time, in seconds
    deadline_s        a pair that takes longer is dropped; also how long to wait for a scheduled partner, in seconds
    meeting_s         how long finished peers wait for the others before the final average, in seconds

    Raises:
        UserError: if `pairing` is neither "random" nor "scheduled".
    """

    pairing: str = "random"
    seed: int = 0
    patience: float = 0.25
    least_patience_s: float = 1.0
    most_patience_s: float = 300.0
    deadline_s: float = 120.0
    meeting_s: float = 600.0

    def __post_init__(self) -> None:
        if self.pairing not in ("random", "scheduled"):
            raise UserError(
                f"exchange.pairing={self.pairing!r} is not one of random, scheduled: set exchange.pairing=random"
            )


class SwarmGossip(SwarmExchange):
    """Exchange among the peers of one run. The constructor starts this peer; `join` waits for the others.

    The keyword arguments are the fields of GossipOptions.
    """

    info = Capabilities(agrees=False, waits_for_all=False, lockstep=False, measures_transfer=True, concurrent=True)
    __signature__ = signature(GossipOptions)

    def __init__(self, **named: Any) -> None:
        options = GossipOptions(**named)
        self._patience = PairingTimeout(options.patience, min_s=options.least_patience_s, max_s=options.most_patience_s)
        super().__init__(options, on_status=options.on_status or logger.info)
        deadline_s, self._meeting_s, self._seed = options.deadline_s, options.meeting_s, options.seed
        self._scheduled_wait_s = deadline_s if options.pairing == "scheduled" else None
        self._clock = _Clock()
        self.node.trust.allow.current_number = lambda: 0  # new peers can join only before the first round
        with self.appearing() as parts:
            store = ContentStore()
            bulk = Bulk(self.node, store, run=options.run, allowed=self.members.__contains__, limiter=self._rate)
            shared = self.node, self.members, store, bulk
            run, limit = options.run, self._max_blob_bytes
            self._gossip = GossipRunner(*shared, run=run, deadline_s=deadline_s, max_blob_bytes=limit)
            self._final_gather = FinalGather(*shared, run=run, wait_s=self._meeting_s, max_blob_bytes=limit)
            parts += [bulk, self._gossip, self._final_gather]
            self._carriers = (bulk,)

    @property
    def rank(self) -> int:
        """This peer's index among the members; valid after `join`."""
        return list(self.members.names.values()).index(self.peer)

    def counters(self) -> dict[str, float]:
        """Return the counters of GossipRunner and the number of rejections of each kind.

        Many dropped pairs mean that `deadline_s` is too short for the payload, or that peers die.
        """
        return {
            "solo_rounds": self._gossip.solo_rounds,
            "dropped_pairs": self._gossip.dropped_pairs,
            "one_sided_rounds": self._gossip.one_sided_rounds,
            "idle_s": self._gossip.idle_s,
            **self.node.trust.rejections.counters(),
        }

    def join(self, first: Round = FIRST) -> None:
        """Wait until all peers are present and see the same members.

        Raises UserError if peers are missing (the message lists those present), or if the run has started without this
        peer.
        """
        self._presence.form()
        if self.peer not in self.members.names.values():
            raise UserError(
                "this gossip run has started without this peer and accepts no new peers: set exchange.run to a new name"
            )
        self.node.call(self._begin(), timeout_s=DHT_S)
        self._clock.begin()

    def refused(self, round: Round, refusals: Refusals) -> None:
        """Record the peers whose payloads were unusable, and do not choose them as partners for some rounds."""
        reasons = {peer: why.removeprefix(f"{peer}: ") for peer, why in refusals.items() if peer != self.peer}
        self.node.spawn(self._strike(round, reasons))

    def start(self, blob: bytes, round: Round) -> _Pending:
        self._check_size(blob)
        self.node.trust.allow.current_number = lambda: round.number
        own_s = self._patience.timeout_s(self._clock.inner_s())
        patience_s = own_s if self._scheduled_wait_s is None else self._scheduled_wait_s
        pending = _Pending(
            self._under_way(self._gossip.run_round(round, blob, timeout_s=patience_s)), self._clock, round
        )
        self._follow(pending)
        return pending

    def all_gather(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Return this peer's message and those that this peer has fetched from other members in time."""
        self._on_status(f"final gather: waiting up to {self._meeting_s:g} s for the other peers")
        try:
            return self.node.call(self._final_gather.run(number, blob), timeout_s=timeout_s + WAITS * self._meeting_s)
        except TimeoutError as error:
            raise RoundFailed(f"final gather {number} did not finish in time") from error

    def linger(self) -> None:
        """Wait until the peers that are present have fetched the messages of the final gather."""
        self.node.call(self._final_gather.linger(), timeout_s=self._meeting_s + 2 * LINGER_S)

    async def _strike(self, round: Round, reasons: Refusals) -> None:
        for peer, reason in reasons.items():
            self.node.trust.rejections.note("payloads", peer, f"{round}: {reason}")
            self._gossip.strike(id_of(peer))

    async def _begin(self) -> None:
        self._gossip.begin(self._partners())

    def _partners(self) -> Partners:
        peers = list(self.members.names)
        if self._scheduled_wait_s is not None:
            return ScheduledPartners(peers, self.node.peer_id, seed=self._seed)
        return RandomPartners([peer for peer in peers if peer != self.node.peer_id])


class _Clock:
    """Measures how long the trainer works between two rounds, excluding the time it waits for a round."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._since_s, self.waited_s = time.monotonic(), 0.0

    def inner_s(self) -> float:
        """Return the working time, in seconds, since the last call or since `begin`."""
        inner_s = time.monotonic() - self._since_s - self.waited_s
        self.begin()
        return inner_s


class _Pending(SwarmPending):
    """A gossip round in progress. The duration of `wait` is added to the clock's waiting time."""

    def __init__(self, future: Future[list[Contribution]], clock: _Clock, round: Round) -> None:
        super().__init__(future)
        self._clock = clock
        self._round = round

    def wait(self, timeout_s: float) -> list[Contribution]:
        began_s = time.monotonic()
        try:
            return self.future.result(timeout_s)
        except TimeoutError:
            self.future.cancel()
            raise RoundFailed(f"{self._round} found no partner and took no solo step in {timeout_s:g} s") from None
        except CancelledError:
            raise RoundFailed(f"{self._round} was dropped: this peer is leaving") from None
        finally:
            self._clock.waited_s += time.monotonic() - began_s
