"""One exchange for the lanes of an island: the first rank sends what all of them have to say as one message.

    rank 0 … L−1: blob of its shards  →  leader: bundle  →  exchange  →  bundles of all islands
    bundle r  →  leader: blobs 0 … L−1  →  lane r: its blob of every island

So all lanes of an island take part in a round, or none does: one message, one commit, one state for who comes late,
whatever a lane holds. Outer state stays sharded; what goes through the leader is compressed, but for the state of a
newcomer. Every question to the leader's exchange is put by all lanes together, and the leader checks that it is one.

L lanes. A bundle of one lane is its blob.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from outerloop.exchange.island_leader import LeaderExchange, listed, unlisted
from outerloop.protocols import Exchange, Pending, Read
from outerloop.replica.rank_group import RankGroup, tensor_of
from outerloop.state import canonical
from outerloop.types import (
    Contribution,
    ExecutorHandoff,
    Refusals,
    ReplicasDiverged,
    Round,
    RoundFailed,
    StateTransferRequired,
)

RECOVERY = "the others' state"
OVERHEAD_BYTES = 1 << 16
"""As much as a bundle adds to what is in it."""
Blobs = list[bytes]


class ShardedIsland(LeaderExchange):
    """An Exchange of processes that hold other shards of the same weights each."""

    def decided(self, round: Round) -> bool:
        """As the leader's exchange says. Raises StateTransferRequired at all."""
        return self.asked(f"whether {round} is decided", b"", lambda exchange, _: exchange.decided(round))

    def start(self, blob: bytes, round: Round) -> PendingBundle:
        """What all lanes offer, as one. Raises at all what the leader's exchange raises."""
        pending = PendingBundle(self, round)
        self.asked(f"to begin {round}", blob, pending.begin, self.beginning)
        return pending

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """All lanes give their part of the state, if it is wanted: the leader says so before its last word."""

        def whole() -> bytes:
            self.together(lambda _: True)
            return bundle(self.ranks.gather(state()))

        def land(exchange: Exchange, _: Blobs) -> bool:
            exchange.landed(round, whole)
            return False

        wanted = self.asked(f"to have landed {round}", b"", land)
        while wanted:
            self.ranks.gather(state())
            wanted = self.together(lambda _: False)

    def once(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """Read by each lane, its own part; what one refuses no lane counts.

        What one cannot read at all none lands: raises what it raises there, RoundFailed at the other lanes.
        """
        what: Read | None = None
        failed: Exception | None = None
        try:
            what = read({})
        except Exception as error:
            failed = error
        own = [f"{type(failed).__name__}: {failed}" if failed else "", dict(what.refused) if what else {}]

        def joined(_: Exchange, of_lanes: Blobs) -> list[Any]:
            failures, refusals = zip(*map(canonical.unpack, of_lanes), strict=True)
            return ["; ".join(filter(None, failures)), dict(ChainMap(*refusals))]

        failures, refused = self.asked(f"to have read {round}", canonical.pack(own), joined)
        if failed:
            raise failed
        if failures:
            raise RoundFailed(f"{round} cannot be read by all ranks of this island: {failures}")
        assert what is not None
        return what if refused == what.refused else read(refused)

    def meet(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """One message an island, of which each lane gets its part. Raises RoundFailed, also for what is no bundle."""
        met: list[Contribution] = []

        def meet(exchange: Exchange, blobs: Blobs) -> None:
            met.extend(exchange.meet(bundle(blobs), number, timeout_s))

        self.asked(f"to meet {number}", blob, meet)
        contributions = self.dealt(met)
        for one in contributions:
            if blob and not one.blob:
                raise RoundFailed(f"{one.peer} does not speak for {self.ranks.size} lanes, as this island does")
        return contributions

    def hand_over(self, way: ExecutorHandoff, state: Callable[[], bytes]) -> bytes:
        """This lane's part. An island takes as a whole, also where only some of its lanes hold other weights."""

        def joint(_: Exchange, of_lanes: Blobs) -> list[Any]:
            told = [canonical.unpack(one) for one in of_lanes]
            return [sorted({peer for takers, _ in told for peer in takers}), sum(most for _, most in told)]

        takers, most_bytes = self.asked("who takes the start", canonical.pack([way.takers, way.most_bytes]), joint)
        givers = [peer for peer in way.givers if peer not in takers]
        if not takers:
            return b""
        own = self.ranks.gather(state()) if self.peer in givers else []
        content: Blobs = []

        def hand(exchange: Exchange) -> None:
            whole = ExecutorHandoff(way.number, givers, takers, OVERHEAD_BYTES + most_bytes)
            content.extend(parts_or_nothing(exchange.hand_over(whole, lambda: bundle(own)), self.ranks.size))

        self.together(hand)
        return self.ranks.deal(content) if self.peer in takers else b""

    def recovered(self, most_bytes: int) -> tuple[Round, bytes]:
        """This lane's part of the others' state. Lanes that ask for something else meanwhile take it over, too."""
        content: Blobs = []

        def fetch(exchange: Exchange, most: Blobs) -> list[int]:
            round, state = self.fetched(exchange, OVERHEAD_BYTES + sum(int(one) for one in most))
            content.extend(parts_or_nothing(state, self.ranks.size))
            return [round.number, round.fragment]

        try:
            number, fragment = self.asked(RECOVERY, b"%d" % most_bytes, fetch)
        except StateTransferRequired:
            return self.recovered(most_bytes)
        return Round(number, fragment), self.ranks.deal(content)

    def asked(
        self, what: str, blob: bytes, work: Callable[[Exchange, Blobs], Any], ranks: RankGroup | None = None
    ) -> Any:
        """What `work` makes at the leader of the blobs of all lanes, at all. `ranks`: as in `together`.

        Raises what it raises, StateTransferRequired where other lanes need the others' state, and ReplicasDiverged or
        LeaderFailed where lanes are not at the same point for any other reason.
        """
        ranks = ranks or self.ranks
        came = [canonical.unpack(one) for one in ranks.gather(canonical.pack([what, tensor_of(blob)]))]

        def at_leader(exchange: Exchange) -> Any:
            self.check_one({words for words, _ in came}, exchange)
            return work(exchange, [one.numpy().tobytes() for _, one in came])

        return self.together(at_leader, ranks)

    def check_one(self, questions: set[str], exchange: Exchange) -> None:
        """Raises as `asked` says if lanes have put different questions."""
        if len(questions) == 1:
            return
        if RECOVERY in questions and exchange.recovery:
            raise StateTransferRequired(exchange.recovery)
        raise ReplicasDiverged(f"the lanes of this island are not at the same point: {', '.join(sorted(questions))}")

    def dealt(self, bundles: Sequence[Contribution]) -> list[Contribution]:
        """What the leader got, at each lane its part of it; nothing as the part of what is no bundle for L lanes."""
        apart = [(one, parts_or_nothing(bytes(one.blob), self.ranks.size)) for one in bundles]
        lanes = range(self.ranks.size if self.ranks.leads else 0)
        of_lanes = [canonical.pack(listed([replace(one, blob=blobs[lane]) for one, blobs in apart])) for lane in lanes]
        return unlisted(canonical.unpack(self.ranks.deal(of_lanes)))


class PendingBundle:
    """One round under way at the leader."""

    def __init__(self, bundled: ShardedIsland, round: Round) -> None:
        self.bundled, self.round = bundled, round
        self.pending: Pending | None = None

    def begin(self, exchange: Exchange, blobs: Blobs) -> None:
        """At the leader: the message leaves; an empty one where the round was decided without this island."""
        self.pending = exchange.start(bundle(blobs) if any(blobs) else b"", self.round)

    def wait(self, timeout_s: float) -> list[Contribution]:
        """This lane's part, as the leader's exchange has it. Raises RoundFailed, QuorumLost, StateTransferRequired."""
        came: list[Contribution] = []

        def waited(exchange: Exchange, _: Blobs) -> None:
            assert self.pending is not None
            came.extend(self.pending.wait(timeout_s))

        self.bundled.asked(f"to land {self.round}", b"", waited)
        return self.bundled.dealt(came)

    def arrived(self) -> bool:
        """As the leader's exchange has it."""
        return self.bundled.asked(
            f"whether {self.round} is here",
            b"",
            lambda exchange, _: self.pending is not None and self.pending.arrived(),
        )


def bundle(blobs: Sequence[bytes]) -> bytes:
    """L blobs as one message; equal blobs give equal bytes."""
    return blobs[0] if len(blobs) == 1 else canonical.pack([tensor_of(blob) for blob in blobs])


def parts_of(content: bytes, lanes: int) -> Blobs:
    """The inverse. Raises ValueError for what is no bundle of so many lanes."""
    if lanes == 1:
        return [content]
    blobs = canonical.unpack(content)
    if not isinstance(blobs, list) or len(blobs) != lanes or not all(is_bytes(one) for one in blobs):
        raise ValueError(f"not what {lanes} lanes have to say")
    return [one.numpy().tobytes() for one in blobs]


def is_bytes(x: Any) -> bool:
    """Whether this is what `tensor_of` gives."""
    return isinstance(x, Tensor) and x.dtype == torch.uint8 and x.ndim == 1


def parts_or_nothing(content: bytes, lanes: int) -> Blobs:
    """The same, and for what is no bundle a message for each lane that it will refuse by its sender's name."""
    try:
        return parts_of(content, lanes)
    except ValueError:
        return [b""] * lanes
