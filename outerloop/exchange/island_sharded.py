"""Share one exchange among the lanes of an island, which hold its shards: the leader bundles the lanes' messages.

    rank 0 … L−1: blob of its shards  →  leader: bundle  →  exchange  →  bundles of all islands
    bundles  →  leader: unpack blobs 0 … L−1 of each  →  lane r: blob r of every island

Either all lanes of an island take part in a round, or none does. Every message of an island, every commit, and every
state for a late joiner includes all lanes. The outer state stays sharded. All data that passes through the leader is
compressed, except states that are sent to other peers. All lanes make each request to the leader's exchange together,
and the leader checks that the requests are the same.

L is the number of lanes. If there is one lane, a bundle is the blob itself.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from outerloop.exchange.island_leader import LeaderExchange, from_tree, replicas_of, to_tree
from outerloop.exchange_protocols import Read, hand_over, meeting, replicated
from outerloop.protocols import Exchange, Pending
from outerloop.replica.rank_group import RankGroup, uint8_tensor
from outerloop.state import canonical
from outerloop.types import (
    Contribution,
    Refusals,
    ReplicasDiverged,
    Round,
    RoundFailed,
    StateHandoff,
    StateTransferRequired,
)

RECOVERY = "download the others' state"
OVERHEAD_BYTES = 1 << 16
"""Maximum number of bytes that a bundle adds to its blobs."""
Blobs = list[bytes]


class ShardedIsland(LeaderExchange):
    """An exchange shared by processes that each hold a different shard of the same weights."""

    def decided(self, round: Round) -> bool:
        """Return whether a round has been decided, as reported by the leader's exchange.

        If that exchange raises StateTransferRequired, all lanes raise it.
        """
        return self.request(
            f"ask whether {round} is decided", b"", lambda exchange, _: replicas_of(exchange).decided(round)
        )

    def start(self, blob: bytes, round: Round) -> PendingBundle:
        """Start the round with one bundle of all lanes' messages. If this fails, all lanes raise an error."""
        pending = PendingBundle(self, round)
        self.request(f"start {round}", blob, pending.begin, self.launch_ranks)
        return pending

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """Report a landed round to the leader's exchange. If it needs the state, gather the state from all lanes."""

        def whole() -> bytes:
            self.at_leader(lambda _: True)
            return bundle(self.ranks.gather(state()))

        def land(exchange: Exchange, _: Blobs) -> bool:
            replicas_of(exchange).landed(round, whole)
            return False

        wanted = self.request(f"report the landing of {round}", b"", land)
        while wanted:
            self.ranks.gather(state())
            wanted = self.at_leader(lambda _: False)

    def decode_shared(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """Decode this lane's part of a round with `read`. A message that any lane refuses is left out in all lanes.

        If one lane cannot decode its part at all, no lane lands the round: that lane raises its error, and the other
        lanes raise RoundFailed.
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

        failures, refused = self.request(f"compare what was read of {round}", canonical.pack(own), joined)
        if failed:
            raise failed
        if failures:
            raise RoundFailed(f"{round} cannot be read by all ranks of this island: {failures}")
        assert what is not None
        return what if refused == what.refused else read(refused)

    def all_gather(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Gather one message per island, and return this lane's part of each.

        Raises RoundFailed if a message is not a bundle with one blob per lane of this island.
        """
        met: list[Contribution] = []

        def meet(exchange: Exchange, blobs: Blobs) -> None:
            met.extend(meeting(exchange).all_gather(bundle(blobs), number, timeout_s))

        self.request(f"all-gather {number}", blob, meet)
        contributions = self.scatter(met)
        for message in contributions:
            if blob and not message.blob:
                raise RoundFailed(
                    f"{message.peer} did not send a bundle of {self.ranks.size} lanes: use islands with equal numbers"
                    " of ranks, or set island=gathered on all"
                )
        return contributions

    def hand_over(self, way: StateHandoff, state: Callable[[], bytes]) -> bytes:
        """Transfer the initial state, and return this lane's part if this island is a taker, otherwise empty bytes.

        If any lane of an island needs state, all its lanes receive it.
        """

        def joint(_: Exchange, of_lanes: Blobs) -> list[Any]:
            requests = [canonical.unpack(blob) for blob in of_lanes]
            return [sorted({peer for takers, _ in requests for peer in takers}), sum(limit for _, limit in requests)]

        takers, max_bytes = self.request(
            "choose the peers that take the initial state", canonical.pack([way.takers, way.max_bytes]), joint
        )
        givers = [peer for peer in way.givers if peer not in takers]
        if not takers:
            return b""
        own = self.ranks.gather(state()) if self.peer in givers else []
        content: Blobs = []

        def hand(exchange: Exchange) -> None:
            whole = replace(way, givers=givers, takers=takers, max_bytes=OVERHEAD_BYTES + max_bytes)
            content.extend(parts_or_nothing(hand_over(exchange, whole, lambda: bundle(own)), self.ranks.size))

        self.at_leader(hand)
        return self.ranks.scatter(content) if self.peer in takers else b""

    def recover(self, max_bytes: int) -> tuple[Round, bytes]:
        """Download the other peers' state, and return this lane's part.

        If other lanes make a different request at the same time, their request raises StateTransferRequired, and this
        method tries again.
        """
        content: Blobs = []

        def fetch(exchange: Exchange, limits: Blobs) -> list[int]:
            round, state = self.fetch_state(exchange, OVERHEAD_BYTES + sum(map(int, limits)))
            content.extend(parts_or_nothing(state, self.ranks.size))
            return [round.number, round.fragment]

        try:
            number, fragment = self.request(RECOVERY, b"%d" % max_bytes, fetch)
        except StateTransferRequired:
            return self.recover(max_bytes)
        return Round(number, fragment), self.ranks.scatter(content)

    def request(
        self, what: str, blob: bytes, work: Callable[[Exchange, Blobs], Any], ranks: RankGroup | None = None
    ) -> Any:
        """Call `work` on the leader with the blobs of all lanes, and return its result on all lanes.

        what: description of the request, which must be the same on all lanes.
        ranks: the group for the messages, or None for `self.ranks`, which only one thread may use.

        If `work` raises an error, every lane raises an error. If the lanes make different requests, `work` is not
        called: if a lane needs the other peers' state, all lanes raise StateTransferRequired; otherwise the leader
        raises ReplicasDiverged, and the other lanes raise LeaderFailed.
        """
        ranks = ranks or self.ranks
        requests = [canonical.unpack(blob) for blob in ranks.gather(canonical.pack([what, uint8_tensor(blob)]))]

        def checked_work(exchange: Exchange) -> Any:
            self.check_same_request({words for words, _ in requests}, exchange)
            return work(exchange, [x.numpy().tobytes() for _, x in requests])

        return self.at_leader(checked_work, ranks)

    def check_same_request(self, questions: set[str], exchange: Exchange) -> None:
        """Check that all lanes have made the same request. Called only on the leader.

        If not, raises StateTransferRequired if a lane needs the other peers' state, otherwise ReplicasDiverged.
        """
        if len(questions) == 1:
            return
        if RECOVERY in questions and (majority := replicated(exchange)):
            raise StateTransferRequired(majority.recover)
        raise ReplicasDiverged(f"the lanes of this island made different requests: {', '.join(sorted(questions))}")

    def scatter(self, bundles: Sequence[Contribution]) -> list[Contribution]:
        """Return this lane's part of each bundle that the leader received. The part of an invalid bundle is empty."""
        apart = [(message, parts_or_nothing(bytes(message.blob), self.ranks.size)) for message in bundles]
        lanes = range(self.ranks.size if self.ranks.is_leader else 0)
        of_lanes = [
            canonical.pack(to_tree([replace(message, blob=blobs[lane]) for message, blobs in apart])) for lane in lanes
        ]
        return from_tree(canonical.unpack(self.ranks.scatter(of_lanes)))


class PendingBundle:
    """A round that the leader has started."""

    def __init__(self, island: ShardedIsland, round: Round) -> None:
        self.island, self.round = island, round
        self.pending: Pending | None = None

    def begin(self, exchange: Exchange, blobs: Blobs) -> None:
        """Start the round on the leader. Send an empty message if all blobs are empty.

        They are empty if the other islands have already decided the round.
        """
        self.pending = exchange.start(bundle(blobs) if any(blobs) else b"", self.round)

    def wait(self, timeout_s: float) -> list[Contribution]:
        """Return this lane's part of the contributions. If the leader's `wait` fails, all lanes raise an error."""
        received: list[Contribution] = []

        def wait(exchange: Exchange, _: Blobs) -> None:
            assert self.pending is not None
            received.extend(self.pending.wait(timeout_s))

        self.island.request(f"wait for {self.round}", b"", wait)
        return self.island.scatter(received)

    def arrived(self) -> bool:
        """Return whether `wait` would return or fail immediately on the leader."""
        return self.island.request(
            f"ask whether {self.round} has arrived",
            b"",
            lambda exchange, _: self.pending is not None and self.pending.arrived(),
        )


def bundle(blobs: Sequence[bytes]) -> bytes:
    """Pack the blobs of all lanes into one message. Equal blobs give equal bytes."""
    return blobs[0] if len(blobs) == 1 else canonical.pack([uint8_tensor(blob) for blob in blobs])


def parts_of(content: bytes, lanes: int) -> Blobs:
    """Unpack a bundle into one blob per lane. Raises ValueError if `content` is not a bundle of `lanes` blobs.

    The sizes are checked first, because decoding a larger tree could need much more memory than its bytes.
    """
    if lanes == 1:
        return [content]
    if len(canonical.header(content)) > OVERHEAD_BYTES or canonical.tree_size(content) > OVERHEAD_BYTES:
        raise ValueError(
            f"the bundle adds more than {OVERHEAD_BYTES:,} bytes in total to the blobs of its {lanes} lanes"
        )
    blobs = canonical.unpack(content)
    if not isinstance(blobs, list) or len(blobs) != lanes or not all(is_bytes(x) for x in blobs):
        raise ValueError(f"not a bundle of {lanes} lanes")
    return [x.numpy().tobytes() for x in blobs]


def is_bytes(x: Any) -> bool:
    """Return whether `x` is a one-dimensional uint8 tensor, such as `uint8_tensor` returns."""
    return isinstance(x, Tensor) and x.dtype == torch.uint8 and x.ndim == 1


def parts_or_nothing(content: bytes, lanes: int) -> Blobs:
    """Unpack a bundle as `parts_of` does. If that fails, return empty messages, which every lane then refuses."""
    try:
        return parts_of(content, lanes)
    except ValueError:
        return [b""] * lanes
