"""One exchange for several processes that hold the same weights: the first takes part, the others hear what came back.

    leader: exchange.start(blob) … wait   →   all contributions   →   broadcast inside the island   →   all land them

The ranks of a DDP model, or the copies of one shard in HSDP, are one peer so: a message crosses the slow link once,
however many they are. Everyone makes the same message of the same weights, which is checked, and lands the same bytes,
so they stay equal without a word about weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from outerloop.exchange.island_leader import LeaderExchange, listed, unlisted
from outerloop.protocols import Exchange, Pending, Read
from outerloop.replica.rank_group import tensor_of
from outerloop.types import Contribution, ExecutorHandoff, Refusals, ReplicasDiverged, Round, RoundFailed
from outerloop.wire import InvalidMessage


class ReplicatedIsland(LeaderExchange):
    """An Exchange of processes that hold the same weights."""

    def decided(self, round: Round) -> bool:
        """As the leader's exchange says. Raises StateTransferRequired at all."""
        return self.together(lambda exchange: exchange.decided(round))

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """The leader has a state to give. Raises StateTransferRequired at all."""
        self.together(lambda exchange: exchange.landed(round, state))

    def once(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """As the leader reads it, which may be one of several lanes. Raises RoundFailed for what cannot be read."""
        what: list[Read] = []

        def at_leader(exchange: Exchange) -> dict[str, str]:
            try:
                what.append(exchange.once(round, read))
            except InvalidMessage as bad:
                raise RoundFailed(str(bad)) from bad
            return dict(what[0].refused)

        refused = self.together(at_leader)
        return what[0] if what else read(refused)

    def start(self, blob: bytes, round: Round) -> PendingLeaderRound:
        """Offered once, by the leader. Raises at all what it raises there; ReplicasDiverged or LeaderFailed."""
        pending = PendingLeaderRound(self)
        digests = self.beginning.gather(hashlib.sha256(blob).digest())

        def begin(exchange: Exchange) -> None:
            if len(set(digests)) > 1:
                raise ReplicasDiverged(
                    f"the ranks of this island offer different messages in round {round.number}: they must hold equal"
                    " weights and count equal samples"
                )
            pending.begin(exchange, blob, round)

        self.together(begin, self.beginning)
        return pending

    def meet(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """One message an island, the leader's. Raises RoundFailed."""
        return unlisted(self.together(lambda exchange: listed(exchange.meet(blob, number, timeout_s))))

    def hand_over(self, way: ExecutorHandoff, state: Callable[[], bytes]) -> bytes:
        """The leader gives for its island, or takes, and all ranks get what it got. Raises as the leader's does."""

        if not way.takers:
            return b""
        return self.together(lambda exchange: tensor_of(exchange.hand_over(way, state))).numpy().tobytes()

    def recovered(self, most_bytes: int) -> tuple[Round, bytes]:
        """The others' state, the same at all."""

        def asked(exchange: Exchange) -> list[Any]:
            round, content = self.fetched(exchange, most_bytes)
            return [round.number, round.fragment, tensor_of(content)]

        number, fragment, content = self.together(asked)
        return Round(number, fragment), content.numpy().tobytes()


class PendingLeaderRound:
    """One round under way at the leader."""

    def __init__(self, led: ReplicatedIsland) -> None:
        self.led = led
        self.pending: Pending | None = None

    def begin(self, exchange: Exchange, blob: bytes, round: Round) -> None:
        """At the leader: the message leaves."""
        self.pending = exchange.start(blob, round)

    def wait(self, timeout_s: float) -> list[Contribution]:
        """As the leader's exchange has it. Raises RoundFailed, QuorumLost, StateTransferRequired."""

        def waited(exchange: Exchange) -> list[Any]:
            assert self.pending is not None
            return listed(self.pending.wait(timeout_s))

        return unlisted(self.led.together(waited))

    def arrived(self) -> bool:
        """As the leader's exchange has it."""
        return self.led.together(lambda exchange: self.pending is not None and self.pending.arrived())
