"""state_device=cpu: outer state away from the model trains like outer state beside it; the model gets copies."""

import copy

import pytest
import torch
import toy
from test_left_out import WithoutLate, fused
from torch import nn
from torch._subclasses import FakeTensorMode

import outerloop
from outerloop.commands import config
from outerloop.feedback.ef import ErrorFeedback
from outerloop.island import Island
from outerloop.memory import estimate
from outerloop.methods.noloco import NoLoCo
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from outerloop.types import UserError

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
                p.grad = torch.randn(p.shape, generator=draw)
                p.data -= 0.1 * p.grad
            assert not any(report.failed for report in loop.after_inner_step(1))
        return [p.detach() for p in net.parameters()], list(loop.slow.values()), bool(loop.routes.split(loop.slow)[0])

    return toy.run_workers(2, work)


@pytest.mark.parametrize(
    ("case", "without"), [(case, without) for case in CASES for without in ((), (1,)) if case != "eager" or not without]
)
def test_all_that_moves_is_the_same_bit_for_bit(case, without):
    beside, apart = (trained(CASES[case](), door, without) for door in (Island, away))
    assert beside[0][2] == apart[0][2] == case.startswith("fused")
    for ours, theirs in zip(beside, apart, strict=True):
        for kind in (0, 1):
            assert all(torch.equal(x, y) for x, y in zip(ours[kind], theirs[kind], strict=True))


def test_what_is_read_shares_no_memory_with_the_model():
    net = toy.model()
    for read in (away(net).pick, lambda names: away(net).read(names, "weights")):
        for name, x in read(["0.weight"]).items():
            assert torch.equal(x, net.get_parameter(name)) and x.data_ptr() != net.get_parameter(name).data_ptr()


def test_state_is_apart_only_where_the_model_is_elsewhere():
    assert not Island(toy.model().to("meta"), state_device=CPU).in_place
    assert Island(toy.model(), state_device=CPU).in_place


def test_what_is_read_comes_from_a_gpu_to_the_cpu():
    """Fake tensors of a GPU, which a machine without one can have too; torch refuses what would mix devices."""
    with FakeTensorMode():
        net = nn.ParameterDict({name: torch.empty(7, device="cuda", dtype=torch.bfloat16) for name in ("a", "b")})
        island = Island(net, state_device=CPU)
        for p in net.parameters():
            p.grad = torch.empty_like(p)
        names = list(island.params)
        for held in (island.pick(names), island.read(names, "weights"), island.read(names, "gradients")):
            assert {x.device for x in held.values()} == {CPU}


def test_what_is_written_goes_to_the_device_of_the_model():
    """Without a GPU: to `meta`, which takes what is moved there, and no average with what is on the CPU."""
    net = toy.model().to("meta")
    held = {"0.bias": torch.ones(7)}
    Island(net, state_device=CPU).write(held, merge_local=0.5)
    with pytest.raises(RuntimeError, match="device"):
        torch.lerp(held["0.bias"], net[0].bias.data, 0.5)


def test_the_option_says_where_and_only_two_places_are_known():
    assert config.load([]).state_device == "model"
    with pytest.raises(UserError, match="state_device=disk is not one of model, cpu: type state_device=model"):
        config.load(["state_device=disk"])


def test_memory_says_what_lies_apart():
    net = toy.model()
    outer = outerloop.from_recipe("diloco", net, "state_device=cpu", exchange=toy.alone())
    assert outer.island.in_place and "on cpu" not in str(estimate(outer, None))
    outer.island.state_device = CPU
    assert str(estimate(outer, None)).endswith("; slow, residual and momentum on cpu")
