"""A leader that meets others for all ranks of its island: what happens to it happens to all."""

import pytest
from torch import distributed as dist

from outerloop.exchange.island_replicated import ReplicatedIsland
from outerloop.replica.rank_group import RankGroup
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


class Shaky:
    """An exchange that fails in its first round, is outrun in its second, and tells what it gets in the third.

    In the fourth it still has what was offered before it came back.
    """

    info = Capabilities(
        agrees=True, waits_for_all=True, lockstep=True, measures_transfer=True, concurrent=True, replicated=True
    )
    late_joiner = False
    peer, rank, size, alive = "one", 0, 1, 1
    bytes_sent, bytes_received, transfer_s = 5, 0, 0.0

    def start(self, blob, round):
        self.blob, self.round = blob, round
        return self

    def decode_shared(self, round, read):
        """Another lane refuses a peer."""
        return read({"two": "two: cut short"})

    def hand_over(self, way, state):
        return state() if way.number == 2 else b""

    def landed(self, round, state):
        """Another lane needs the others' state."""
        raise StateTransferRequired(lambda max_bytes: (round, b"state"[:max_bytes]))

    def wait(self, timeout_s):
        if self.round.number == 0:
            raise RoundFailed("the link is down")
        if self.round.number == 1:
            raise StateTransferRequired(lambda max_bytes: (Round(7, 1), b"state" * max_bytes))
        blob = b"of an earlier life" if self.round.number == 3 else self.blob
        return [Contribution("one", self.round, blob), Contribution("two", self.round, b"")]


def unreadable(refused):
    raise InvalidMessage("nothing can be read")


def told_by_the_leader(rank):
    """What both ranks of an island hear of a shaky exchange; in the end they offer different things."""
    led = ReplicatedIsland(Shaky() if rank == 0 else None, ranks=RankGroup(dist.group.WORLD))
    assert led.hand_over(StateHandoff(1, ["one"], ["two"], 20), lambda: b"start") == b""
    assert led.hand_over(StateHandoff(2, ["two"], ["one"], 20), lambda: b"start %d" % rank) == b"start 0"
    with pytest.raises(RoundFailed, match="the link is down"):
        led.start(b"same", Round(0)).wait(1.0)
    with pytest.raises(StateTransferRequired) as outrun:
        led.start(b"same", Round(1)).wait(1.0)
    assert outrun.value.state(2) == (Round(7, 1), b"statestate")
    assert led.start(b"same", Round(2)).wait(1.0) == [
        Contribution("one", Round(2), b"same"),
        Contribution("two", Round(2), b""),
    ]
    assert led.start(b"of this one", Round(3)).wait(1.0)[0] == Contribution("one", Round(3), b"of an earlier life")
    assert led.decode_shared(Round(3), lambda refused: Read(rank, dict(refused))) == Read(
        rank, {"two": "two: cut short"}
    )
    with pytest.raises(RoundFailed, match="nothing can be read"):
        led.decode_shared(Round(4), unreadable)
    with pytest.raises(StateTransferRequired) as outrun:
        led.landed(Round(3), lambda: b"")
    assert outrun.value.state(1) == (Round(3), b"s")
    with pytest.raises(ReplicasDiverged if rank == 0 else LeaderFailed, match="different messages in round 5"):
        led.start(f"of {rank}".encode(), Round(4))
    return led.bytes_sent == (5 if rank == 0 else 0)


def test_events_at_the_leader_reach_all_ranks(tmp_path):
    assert process_group.together(2, told_by_the_leader, tmp_path) == [True] * 2
