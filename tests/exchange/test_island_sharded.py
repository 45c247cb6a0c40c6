"""The lanes of an island that meet others through its first rank: each gets its own part, all are at one point."""

import pytest
import torch
from torch import distributed as dist

from outerloop.exchange.island_sharded import OVERHEAD_BYTES, ShardedIsland, bundle, parts_of
from outerloop.replica.rank_group import RankGroup
from outerloop.state import canonical
from outerloop.types import (
    Capabilities,
    Contribution,
    LeaderFailed,
    ReplicasDiverged,
    Round,
    RoundFailed,
    StateHandoff,
    StateTransferRequired,
)
from outerloop.wire import InvalidMessage
from tests.support import process_group
from tests.support.process_group import Read

LANES = 3
OTHERS = [f"theirs of {lane}".encode() for lane in range(LANES)]
STATE = [b"state of %d" % lane for lane in range(LANES)]
STRANGE = {
    "nobody": b"",
    "no bundle": b"\xff" * 40,
    "one lane": b"a message",
    "two lanes": bundle(OTHERS[:2]),
    "four lanes": bundle([*OTHERS, b"more"]),
    "floats": canonical.pack([torch.ones(3) for _ in OTHERS]),
    "words": canonical.pack(["a", "b", "c"]),
    "a table": canonical.pack({"0": torch.zeros(1, dtype=torch.uint8)}),
}
"""What a peer may send instead of a bundle of three lanes."""


class Swarm:
    """The leader's exchange: another island answers each round, whose state is wanted after round 4."""

    info = Capabilities(
        agrees=True, waits_for_all=False, lockstep=True, measures_transfer=True, concurrent=True, replicated=True
    )
    late_joiner = False
    peer, rank, size, alive = "one", 1, 2, 2
    bytes_sent, bytes_received, transfer_s = 5, 0, 0.0
    given, offered = None, ()

    def decided(self, round):
        if round.number == 7:
            raise StateTransferRequired(
                lambda max_bytes: (Round(9), bundle([b"%d" % (max_bytes - OVERHEAD_BYTES)] * LANES))
            )
        return round.number == 3

    def start(self, blob, round):
        self.blob, self.round, self.offered = blob, round, [*self.offered, blob]
        return self

    def arrived(self):
        return True

    def wait(self, timeout_s):
        if self.round.number == 6:
            raise RoundFailed("the link is down")
        sent = {"one": self.blob, "two": bundle(OTHERS)} | (STRANGE if self.round.number == 5 else {})
        return [Contribution(peer, self.round, blob) for peer, blob in sent.items()]

    def all_gather(self, blob, number, timeout_s):
        return [Contribution("one", Round(number), blob), Contribution("two", Round(number), STRANGE["two lanes"])]

    def hand_over(self, way, state):
        self.way, self.given = way, state() if "one" in way.givers else None
        return b"" if self.given else bundle(STATE)

    def landed(self, round, state):
        if round.number == 4:
            self.given = state()

    def recover(self, max_bytes):
        assert max_bytes == OVERHEAD_BYTES + 20 * LANES
        return Round(8), bundle(STATE)


def rounds_of(bundled, lane):
    """A round that this island takes part in, one decided without it, one full of strange messages, one that fails."""
    own = b"ours of %d" % lane
    pending = bundled.start(own, Round(0))
    assert pending.arrived() and not bundled.decided(Round(0)) and bundled.decided(Round(3))
    assert pending.wait(1.0) == [Contribution("one", Round(0), own), Contribution("two", Round(0), OTHERS[lane])]
    [left_out, _] = bundled.start(b"", Round(3)).wait(1.0)
    assert left_out.blob == b""
    told = {one.peer: one.blob for one in bundled.start(own, Round(5)).wait(1.0)}
    assert told == {"one": own, "two": OTHERS[lane]} | dict.fromkeys(STRANGE, b"")
    with pytest.raises(RoundFailed, match="the link is down"):
        bundled.start(own, Round(6)).wait(1.0)
    with pytest.raises(RoundFailed, match="two did not send a bundle of 3 lanes"):
        bundled.all_gather(own, 1, 1.0)
    if lane == 0:
        assert bundled.exchange.offered[:2] == [bundle([b"ours of %d" % one for one in range(LANES)]), b""]


def readings_of(bundled, lane):
    """What one lane cannot read no lane lands, and whom one refuses no lane counts."""
    assert bundled.decode_shared(Round(0), lambda refused: Read(lane, refused)) == Read(lane, {})

    def read(refused):
        if lane == 1:
            raise InvalidMessage("nothing of it is a number")
        return Read(lane, refused)

    with pytest.raises(InvalidMessage if lane == 1 else RoundFailed, match="nothing of it is a number"):
        bundled.decode_shared(Round(1), read)

    own = {f"peer {lane}": f"peer {lane}: not for lane {lane}"} if lane else {}
    both = {f"peer {one}": f"peer {one}: not for lane {one}" for one in (1, 2)}
    assert bundled.decode_shared(Round(2), lambda refused: Read(lane, refused or own)) == Read(lane, both)


def states_of(bundled, lane):
    """The island's state is wanted of one of two rounds; then the others' is taken, where they are and by one lane."""
    bundled.landed(Round(3), lambda: pytest.fail("nobody wants it"))
    bundled.landed(Round(4), lambda: STATE[lane])
    if lane == 0:
        assert parts_of(bundled.exchange.given, LANES) == STATE
    with pytest.raises(StateTransferRequired) as outrun:
        bundled.decided(Round(7))
    assert outrun.value.state(20 + lane) == (Round(9), b"63")  # 20 + 21 + 22
    assert bundled.recover(20) == (Round(8), STATE[lane])
    if lane == 1:
        assert bundled.recover(20) == (Round(8), STATE[lane])  # it differs from others' lane 1, and lands nothing
    else:
        with pytest.raises(StateTransferRequired) as outrun:
            bundled.landed(Round(5), lambda: b"")
        assert outrun.value.state(20) == (Round(8), STATE[lane])


def starts_of(bundled, lane):
    """An island takes or gives as a whole, although the weights of one lane alone differ; else nobody is asked."""

    def handed(takers):
        names = takers if lane == 1 else []
        way = StateHandoff(2, [peer for peer in ("one", "three", "two") if peer not in names], names, 20 + lane)
        return bundled.hand_over(way, lambda: b"start of %d" % lane)

    assert handed([]) == b"" and (lane or not hasattr(bundled.exchange, "way"))
    assert handed(["one"]) == STATE[lane]
    if lane == 0:
        assert bundled.exchange.way == StateHandoff(2, ["three", "two"], ["one"], 63 + OVERHEAD_BYTES)
    assert handed(["two"]) == b""
    if lane == 0:
        assert bundled.exchange.way == StateHandoff(2, ["one", "three"], ["two"], 63 + OVERHEAD_BYTES)
        assert parts_of(bundled.exchange.given, LANES) == [b"start of %d" % one for one in range(LANES)]


def lane_of_three(lane):
    """All of it, and in the end lanes that are not where the others are."""
    bundled = ShardedIsland(Swarm() if lane == 0 else None, ranks=RankGroup(dist.group.WORLD))
    assert (bundled.peer, bundled.rank, bundled.size, bundled.alive) == ("one", 1, 2, 2)
    assert bundled.bytes_sent == (0 if lane else 5)
    rounds_of(bundled, lane)
    readings_of(bundled, lane)
    starts_of(bundled, lane)
    states_of(bundled, lane)
    with pytest.raises(
        LeaderFailed if lane else ReplicasDiverged, match=r"different requests: start round 2, start round 3"
    ):
        bundled.start(b"", Round(1 + lane // 2))
    return True


def test_each_lane_gets_its_part_and_all_are_at_one_point(tmp_path):
    assert process_group.together(LANES, lane_of_three, tmp_path) == [True] * LANES


@pytest.mark.parametrize("more", [[[]] * 30_000, [torch.zeros(0)] * 2_000], ids=["lists", "tensors"])
def test_a_bundle_that_needs_much_more_memory_than_its_bytes_is_refused_before_it_is_decoded(more, monkeypatch):
    content = canonical.pack([*canonical.unpack(bundle(OTHERS)), *more])
    monkeypatch.setattr(canonical, "unpack", lambda _: pytest.fail("it was decoded"))
    with pytest.raises(ValueError, match="more than 65,536 bytes"):
        parts_of(content, LANES)


def test_equal_blobs_make_equal_bundles_and_one_blob_is_its_own():
    assert bundle(OTHERS) == bundle(list(OTHERS)) and parts_of(bundle(OTHERS), LANES) == OTHERS
    assert bundle([b"alone"]) == b"alone" and parts_of(b"alone", 1) == [b"alone"]
