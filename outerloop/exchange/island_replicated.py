"""Share one exchange among processes with the same weights: the leader takes part and broadcasts what it receives.

    leader: exchange.start(blob) … wait   →   all contributions   →   broadcast inside the island   →   all land them

The ranks of a DDP model, or the copies of one shard in HSDP, thus form one peer: a message crosses the slow link only
once, whatever the number of ranks. All processes compute the same message from the same weights (this is checked) and
land the same bytes, so their weights stay equal without being exchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from outerloop.exchange.island_leader import LeaderExchange, from_tree, replicas_of, to_tree
from outerloop.exchange_protocols import Read, decode_shared, hand_over, meeting
from outerloop.protocols import Exchange, Pending
from outerloop.replica.rank_group import uint8_tensor
from outerloop.types import Contribution, Refusals, ReplicasDiverged, Round, RoundFailed, StateHandoff
from outerloop.wire import InvalidMessage


class ReplicatedIsland(LeaderExchange):
    """An exchange shared by processes that hold the same weights."""

    def decided(self, round: Round) -> bool:
        """Return whether a round has been decided, as reported by the leader's exchange.

        If that exchange raises StateTransferRequired, all processes raise it.
        """
        return self.at_leader(lambda exchange: replicas_of(exchange).decided(round))

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """Report a landed round to the leader's exchange. If it raises StateTransferRequired, all processes do."""
        self.at_leader(lambda exchange: replicas_of(exchange).landed(round, state))

    def decode_shared(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """Decode a round with `read`, and refuse the same messages as the leader.

        If the leader's exchange is itself shared by several lanes, a message that another lane refuses is refused as
        well. Raises RoundFailed if the leader cannot decode the round.
        """
        what: list[Read] = []

        def decode(exchange: Exchange) -> dict[str, str]:
            try:
                what.append(decode_shared(exchange, round, read))
            except InvalidMessage as bad:
                raise RoundFailed(str(bad)) from bad
            return dict(what[0].refused)

        refused = self.at_leader(decode)
        return what[0] if what else read(refused)

    def start(self, blob: bytes, round: Round) -> PendingLeaderRound:
        """Start the round on the leader. If this fails, all processes raise an error.

        If the processes have different messages, the leader raises ReplicasDiverged and the others raise LeaderFailed.
        """
        pending = PendingLeaderRound(self)
        digests = self.launch_ranks.gather(hashlib.sha256(blob).digest())

        def begin(exchange: Exchange) -> None:
            if len(set(digests)) > 1:
                raise ReplicasDiverged(
                    f"the ranks of this island have different messages in {round}: they must hold equal"
                    " weights and count equal numbers of samples"
                )
            pending.begin(exchange, blob, round)

        self.at_leader(begin, self.launch_ranks)
        return pending

    def all_gather(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Gather one message per island, sent by its leader.

        Raises RoundFailed if the leader's exchange does.
        """
        return from_tree(
            self.at_leader(lambda exchange: to_tree(meeting(exchange).all_gather(blob, number, timeout_s)))
        )

    def hand_over(self, way: StateHandoff, state: Callable[[], bytes]) -> bytes:
        """Send or receive the initial state on the leader, and return the received state in all processes.

        If the leader's exchange raises an error, all processes raise one.
        """

        if not way.takers:
            return b""
        return self.at_leader(lambda exchange: uint8_tensor(hand_over(exchange, way, state))).numpy().tobytes()

    def recover(self, max_bytes: int) -> tuple[Round, bytes]:
        """Download the other peers' state on the leader, and return it in all processes."""

        def fetch(exchange: Exchange) -> list[Any]:
            round, content = self.fetch_state(exchange, max_bytes)
            return [round.number, round.fragment, uint8_tensor(content)]

        number, fragment, content = self.at_leader(fetch)
        return Round(number, fragment), content.numpy().tobytes()


class PendingLeaderRound:
    """A round that the leader has started."""

    def __init__(self, island: ReplicatedIsland) -> None:
        self.island = island
        self.pending: Pending | None = None

    def begin(self, exchange: Exchange, blob: bytes, round: Round) -> None:
        """Start the round. Called only on the leader."""
        self.pending = exchange.start(blob, round)

    def wait(self, timeout_s: float) -> list[Contribution]:
        """Return the contributions that the leader received. If its `wait` fails, all processes raise an error."""

        def wait(exchange: Exchange) -> list[Any]:
            assert self.pending is not None
            return to_tree(self.pending.wait(timeout_s))

        return from_tree(self.island.at_leader(wait))

    def arrived(self) -> bool:
        """Return whether `wait` would return or fail immediately on the leader."""
        return self.island.at_leader(lambda exchange: self.pending is not None and self.pending.arrived())
