"""What the process that speaks for others cannot do, the others hear of; nobody is left waiting for its word."""

import pytest
import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import outerloop
from outerloop.config import from_recipe
from outerloop.exchange.island_replicated import ReplicatedIsland
from outerloop.replica.rank_group import RankGroup
from outerloop.types import Capabilities, LeaderFailed, QuorumLost, Round, UserError
from tests.support import process_group, toy


def alone(rank):
    """The exchange of a run of one, at the first process of its island."""
    return None if rank else toy.alone()


class Narrow:
    """Takes no message at all, and is broken besides."""

    info = Capabilities(
        agrees=True, waits_for_all=True, lockstep=True, measures_transfer=True, concurrent=True, replicated=True
    )
    late_joiner = False
    peer, rank, size = "one", 0, 1

    def start(self, blob, round):
        raise UserError("a payload is too large")

    def decided(self, round):
        raise OSError("the disk is full")


def refused_alike(rank):
    """What an exchange refuses at the leader, and how it breaks there."""
    led = ReplicatedIsland(Narrow() if rank == 0 else None, ranks=RankGroup(dist.group.WORLD))
    with pytest.raises(UserError, match="too large"):
        led.start(b"message", Round(0))
    with pytest.raises(LeaderFailed if rank else OSError, match="the disk is full"):
        led.decided(Round(0))
    return True


def unable_to_join(rank, error, expected, **options):
    """What each of two ranks raises when the leader's peers do not come."""

    def joined(*args, **kwargs):
        raise error

    from_recipe.create_and_join = joined
    with pytest.raises(expected, match="nobody came"):
        outerloop.from_recipe("diloco", DistributedDataParallel(toy.model()), **options)
    return True


def left_in_a_round(rank):
    """The leader of a gathered island is deserted while the others serve it."""
    net = DistributedDataParallel(toy.model())
    outer = outerloop.from_recipe("diloco", net, "schedule.sync_every=1", exchange=alone(rank), gathered=True)

    def start(blob, round):
        raise QuorumLost("the others are gone")

    if rank == 0:
        outer.exchange.start = start
    with pytest.raises(LeaderFailed if rank else QuorumLost, match="the others are gone"):
        outer.after_inner_step(1)
    return True


def moved(rank):
    """The inner step on each rank of a gathered island that resumed at step 4, after its leader skipped to step 9."""
    net, state = DistributedDataParallel(toy.model()), None
    if rank == 0:
        state = toy.outer(toy.model(), toy.alone()).state_dict() | {"inner_step": 4}
    outer = outerloop.from_recipe("diloco", net, exchange=alone(rank), state=state, gathered=True)
    steps = [outer.inner_step]
    outer.after_inner_step(1)
    steps.append(outer.inner_step)
    if rank == 0:
        outer.loop.advance = lambda: setattr(outer.loop, "inner_step", 9)
    outer.after_inner_step(1)
    return [*steps, outer.inner_step]


def evaluated(rank):
    """A parameter before, in and after an evaluation of the slow weights, by each rank of a gathered island."""
    net = DistributedDataParallel(toy.model())
    outer = outerloop.from_recipe("diloco", net, exchange=alone(rank), gathered=True)
    begun = net.module[0].weight.tolist()
    toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.1), rank, 0)
    outer.after_inner_step(1)
    fast = net.module[0].weight.tolist()
    with outer.slow_weights():
        assert net.module[0].weight.tolist() == begun != fast
    assert net.module[0].weight.tolist() == fast
    return True


def copies_gathered(rank):
    """The weights of a DDP model after two rounds of a gathered island, and the rounds that landed at its leader."""
    net = DistributedDataParallel(toy.model())
    outer = outerloop.from_recipe("diloco", net, "schedule.sync_every=2", exchange=alone(rank), gathered=True)
    optimizer, told = torch.optim.SGD(net.parameters(), lr=0.1), []
    with outerloop.attach(optimizer, outer, on_round=told.append):
        for step in range(4):
            toy.inner_step(net, optimizer, rank, step)
    return [p.tolist() for p in net.parameters()], [one.round.number for one in told if not one.failed]


def lives(rank):
    """All of it, in each of two processes."""
    mistake, broken = UserError("nobody came"), TimeoutError("nobody came")
    failed = LeaderFailed if rank else TimeoutError
    for options in ({}, {"gathered": True}):
        assert unable_to_join(rank, mistake, UserError, **options)
        assert unable_to_join(rank, broken, failed, **options)
    assert refused_alike(rank) and left_in_a_round(rank)
    assert moved(rank) == [4, 5, 9] and evaluated(rank)
    return copies_gathered(rank)


def test_all_processes_of_an_island_hear_what_its_leader_raises_and_copies_stay_equal(tmp_path):
    (one, landed), (other, unaware) = process_group.together(2, lives, tmp_path)
    assert one == other and landed == [0, 1] and not unaware
