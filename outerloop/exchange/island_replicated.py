"""One exchange for several processes with the same weights: the leader takes part and broadcasts what it receives.

    leader: exchange.start(blob) … wait   →   all contributions   →   broadcast inside the island   →   all land them

So the ranks of a DDP model, or the copies of one shard in HSDP, form one peer: a message crosses the slow link once,
whatever their number. All processes produce the same message from the same weights, which is checked, and land the same
bytes. So their weights stay equal without being exchanged.
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
        """Return the answer of the leader's exchange. Raises StateTransferRequired at all processes."""
        return self.together(lambda exchange: exchange.decided(round))

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """Offer the leader's state to its exchange. Raises StateTransferRequired at all processes."""
        self.together(lambda exchange: exchange.landed(round, state))

    def once(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """Read with the leader's refusals; the leader may be one of several lanes. Raises RoundFailed if unreadable."""
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
        """Start the round, at the leader alone. Raises its errors at all, also ReplicasDiverged or LeaderFailed."""
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
        """Return one message per island, that of its leader. Raises RoundFailed."""
        return unlisted(self.together(lambda exchange: listed(exchange.meet(blob, number, timeout_s))))

    def hand_over(self, way: ExecutorHandoff, state: Callable[[], bytes]) -> bytes:
        """Give or take state at the leader; all ranks get what it received. Raises what the leader's exchange does."""

        if not way.takers:
            return b""
        return self.together(lambda exchange: tensor_of(exchange.hand_over(way, state))).numpy().tobytes()

    def recovered(self, most_bytes: int) -> tuple[Round, bytes]:
        """Return the state of the other peers, the same at all processes."""

        def asked(exchange: Exchange) -> list[Any]:
            round, content = self.fetched(exchange, most_bytes)
            return [round.number, round.fragment, tensor_of(content)]

        number, fragment, content = self.together(asked)
        return Round(number, fragment), content.numpy().tobytes()


class PendingLeaderRound:
    """A round under way at the leader."""

    def __init__(self, led: ReplicatedIsland) -> None:
        self.led = led
        self.pending: Pending | None = None

    def begin(self, exchange: Exchange, blob: bytes, round: Round) -> None:
        """Start the round, at the leader."""
        self.pending = exchange.start(blob, round)

    def wait(self, timeout_s: float) -> list[Contribution]:
        """Return the contributions that the leader received. Raises RoundFailed, QuorumLost, StateTransferRequired."""

        def waited(exchange: Exchange) -> list[Any]:
            assert self.pending is not None
            return listed(self.pending.wait(timeout_s))

        return unlisted(self.led.together(waited))

    def arrived(self) -> bool:
        """Return whether the round has arrived at the leader."""
        return self.led.together(lambda exchange: self.pending is not None and self.pending.arrived())
