"""state_device=cpu: outer state away from the model trains like outer state beside it; the model gets copies."""

import copy

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import outerloop
from outerloop.config import load
from outerloop.core.memory_usage import estimate
from outerloop.feedback.ef import ErrorFeedback
from outerloop.methods.noloco import NoLoCo
from outerloop.replica.gathered import Gathered
from outerloop.replica.island import Island, copy_to
from outerloop.replica.rank_group import RankGroup
from outerloop.replica.sharding import to_local
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from outerloop.types import UserError
from tests.support import process_group, toy
from tests.support.late_peer import WithoutLate, fused

CPU = torch.device("cpu")


def late():
    return EveryH(sync_every=3, delay=1)


CASES = {
    "fused": lambda: fused("sparseloco"),
    "fused, nesterov": lambda: fused("nesterov"),
    "fused, local": lambda: fused("local"),
    "fused, 8 bits": lambda: fused("eight_bit"),
    "fused, late": lambda: fused("sparseloco") | {"schedule": late()},
    "fused, carried": lambda: fused("sparseloco") | {"schedule": late(), "merge_local": "carry"},
    "fused, merged": lambda: fused("sparseloco") | {"merge_local": 0.5},
    "diloco": lambda: {"method": toy.sgd(0.7, 0.9, True), "feedback": ErrorFeedback(beta=0.9)},
    "local": lambda: {"merge_local": 1.0},
    "carried": lambda: {"schedule": late(), "merge_local": "carry"},
    "streaming": lambda: {"schedule": Streaming(sync_every=4, fragments=2, delay=1), "merge_local": 0.5},
    "eager": lambda: {"schedule": EveryH(sync_every=3, delay=3), "eager": True},
    "noloco": lambda: {"method": NoLoCo(alpha=0.5, beta=0.7, gamma=None, consensus="inside")},
    "gradients": lambda: {"method": toy.sgd(0.1, reads="gradients"), "schedule": EveryH(sync_every=1)},
}


def away(net):
    """The door to a model as if it were on a GPU and its outer state on the CPU: all that is read is a copy."""
    island = Island(net)
    island.state_device = CPU
    return island


def trained(parts, door, without=()):
    """Fast and slow weights of both workers after twelve inner steps; rounds `without` the second one's message."""

    def work(exchange):
        net = toy.model(width=20)
        exchange = WithoutLate(exchange, without) if without else exchange
        loop = toy.outer(net, exchange, **copy.deepcopy(parts), island=door(net))
        draw = torch.Generator().manual_seed(exchange.rank)
        for _ in range(12):
            for p in net.parameters():
                step = torch.randn(p.shape, generator=draw)
                p.grad = step if not hasattr(p, "to_local") else None
                to_local(p.detach()).sub_(0.1 * step)
            assert not any(report.failed for report in loop.after_inner_step(1))
        return [p.detach() for p in net.parameters()], list(loop.slow.values()), bool(loop.pipeline.split(loop.slow)[0])

    return toy.run_workers(2, work)


def gathered_by_one(rank):
    """By case whether an island of one rank, which `full_tensor` gives its own memory, has the slow weights of others.

    Threads share the group, of which this process is the only one.
    """
    mesh = init_device_mesh("cpu", (1,))

    def door(net):
        return Gathered(fully_shard(net, mesh=mesh), RankGroup(None))

    cases = [case for case in CASES if case.startswith("fused")]
    return {case: same_slow(*(trained(CASES[case](), each)[0][1] for each in (Island, door))) for case in cases}


def same_slow(one, other):
    return all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


def test_a_gathered_island_of_one_rank_copies_what_it_reads(tmp_path):
    [told] = process_group.together(1, gathered_by_one, tmp_path)
    assert told == dict.fromkeys(told, True) and "fused, carried" in told


@pytest.mark.parametrize(
    ("case", "without"), [(case, without) for case in CASES for without in ((), (1,)) if case != "eager" or not without]
)
def test_all_that_moves_is_the_same_bit_for_bit(case, without):
    beside, apart = (trained(CASES[case](), door, without) for door in (Island, away))
    assert beside[0][2] == apart[0][2] == case.startswith("fused")
    for ours, theirs in zip(beside, apart, strict=True):
        for kind in (0, 1):
            assert all(torch.equal(x, y) for x, y in zip(ours[kind], theirs[kind], strict=True))


def test_weights_that_are_read_share_no_memory_with_the_model():
    net = toy.model()
    for read in (away(net).read_raw, lambda names: away(net).read(names, "weights")):
        for name, x in read(["0.weight"]).items():
            assert torch.equal(x, net.get_parameter(name)) and x.data_ptr() != net.get_parameter(name).data_ptr()


def test_carried_progress_comes_to_the_gpu():
    """`meta` would take a sum with what is on the CPU; a GPU does not."""
    with FakeTensorMode():
        net = nn.ParameterDict({"a": torch.empty(7, device="cuda")})
        Island(net, state_device=CPU).add({"a": torch.empty(7)}, alpha=-1)


@pytest.mark.parametrize("apart", [None, CPU])
def test_a_leader_gathers_and_broadcasts(apart):
    """Its own copies, on the device of the outer state, and back: fake tensors of a GPU, and an island of one rank."""
    net = toy.model()
    gathered = Gathered(net, RankGroup(None))
    for x in (*gathered.read_raw(["0.weight"]).values(), *gathered.read(["0.weight"], "weights").values()):
        assert torch.equal(x, net[0].weight) and x.data_ptr() != net[0].weight.data_ptr()
    with FakeTensorMode():
        island = Gathered(nn.ParameterDict({"a": torch.empty(7, device="cuda")}), RankGroup(None), state_device=apart)
        [picked] = island.read_raw(["a"]).values()
        assert picked.device == (apart or torch.device("cuda:0"))
    spread, alone = [], RankGroup(None)
    alone.broadcast_tensor = lambda x: spread.append(x.device.type) or x
    Gathered(net.to("meta"), alone, state_device=CPU).write({"0.bias": torch.ones(7)}, merge_local=0.5)
    assert spread == ["meta"]


def test_copies_of_what_is_on_a_gpu_are_page_locked(monkeypatch):
    """Without a GPU no memory can be; what torch is asked for shows it."""
    asked, empty = [], torch.empty
    with FakeTensorMode():
        x = empty(7, device="cuda")
        monkeypatch.setattr(torch, "empty", lambda *size, pin_memory, **how: asked.append(pin_memory) or empty(*size))
        copy_to(x, device=CPU)
        copy_to(empty(7), device=CPU)
    assert asked == [True, False]


def test_state_is_apart_only_where_the_model_is_elsewhere():
    assert not Island(toy.model().to("meta"), state_device=CPU).in_place
    assert Island(toy.model(), state_device=CPU).in_place


def test_weights_that_are_read_come_from_a_gpu_to_the_cpu():
    """Fake tensors of a GPU, which a machine without one can have too; torch refuses what would mix devices."""
    with FakeTensorMode():
        net = nn.ParameterDict({name: torch.empty(7, device="cuda", dtype=torch.bfloat16) for name in ("a", "b")})
        island = Island(net, state_device=CPU)
        for p in net.parameters():
            p.grad = torch.empty_like(p)
        names = list(island.params)
        for held in (island.read_raw(names), island.read(names, "weights"), island.read(names, "gradients")):
            assert {x.device for x in held.values()} == {CPU}


def test_weights_that_are_written_go_to_the_device_of_the_model():
    """Without a GPU: to `meta`, which takes what is moved there, and no average with what is on the CPU."""
    net = toy.model().to("meta")
    held = {"0.bias": torch.ones(7)}
    Island(net, state_device=CPU).write(held, merge_local=0.5)
    with pytest.raises(RuntimeError, match="device"):
        torch.lerp(held["0.bias"], net[0].bias.data, 0.5)


def test_the_option_says_where_and_only_two_places_are_known():
    assert load.load([]).state_device == "model"
    with pytest.raises(UserError, match="state_device=disk must be 'model' or 'cpu': set state_device=model"):
        load.load(["state_device=disk"])


def test_memory_says_what_lies_apart():
    net = toy.model()
    outer = outerloop.from_recipe("diloco", net, "state_device=cpu", exchange=toy.alone())
    assert outer.island.in_place and "on cpu" not in str(estimate(outer, None))
    outer.island.state_device = CPU
    assert str(estimate(outer, None)).endswith("; slow, residual and momentum on cpu")
