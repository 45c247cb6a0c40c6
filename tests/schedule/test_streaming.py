"""Streaming: which layers each fragment has, and when it leaves and lands."""

import pytest
import torch

from outerloop.schedule.streaming import Streaming
from outerloop.types import Round, UserError
from tests.support import toy
from tests.support.tensors import same_tensors

NAMES = ["embed.weight", *(f"layers.{i}.{part}" for i in range(5) for part in ("w", "b")), "norm.weight", "head.weight"]


@pytest.mark.parametrize("fragments", [1, 2, 3, 5])
def test_fragments_are_strided_and_cover_everything_once(fragments):
    schedule = Streaming(sync_every=10, fragments=fragments, delay=0)
    parts = [schedule.fragment(p, NAMES) for p in range(fragments)]
    assert sorted(name for part in parts for name in part) == sorted(NAMES)
    assert "embed.weight" in parts[0] and "head.weight" in parts[-1]
    assert all(f"layers.{i}.w" in parts[i % fragments] for i in range(5))


@pytest.mark.parametrize(
    ("numbers", "fragments", "homes"),
    [
        ((0, 2), 2, [0, 1]),
        ((0, 2, 4, 6), 2, [0, 1, 0, 1]),
        ((0, 2, 4, 6), 4, [0, 1, 2, 3]),
        ((3, 10, 4), 3, [0, 2, 1]),
    ],
)
def test_layers_are_dealt_by_their_order_whatever_their_numbers(numbers, fragments, homes):
    """nn.Sequential counts activations too: its layers with weights are 0, 2, 4, ..."""
    names = [f"{number}.{part}" for number in numbers for part in ("weight", "bias")]
    schedule = Streaming(sync_every=8, fragments=fragments, delay=0)
    parts = [schedule.fragment(p, names) for p in range(fragments)]
    assert all(f"{number}.bias" in parts[home] for number, home in zip(numbers, homes, strict=True))
    assert sorted(name for part in parts for name in part) == sorted(names)


def stacked(activation):
    """Two layers with weights, numbered 0 and 2."""
    return torch.nn.Sequential(torch.nn.Linear(7, 7), activation, torch.nn.Linear(7, 3))


def test_a_sequential_with_activations_streams():
    """Both fragments land, each with one of the two layers."""

    def work(exchange):
        torch.manual_seed(0)
        net = stacked(torch.nn.Tanh())
        loop = toy.outer(net, exchange, schedule=Streaming(sync_every=4, fragments=2, delay=0))
        optimizer, landed = torch.optim.SGD(net.parameters(), lr=0.1), []
        for step in range(4):
            toy.inner_step(net, optimizer, exchange.rank, step)
            landed += [report.round.fragment for report in loop.after_inner_step(1) if not report.failed]
        return landed, loop.slow_hash

    (landed, slow), other = toy.run_workers(2, work)
    assert landed == [0, 1] and (landed, slow) == other


@pytest.mark.parametrize(("fragments", "most"), [(3, 2), (2, 1), (4, 0)])
def test_more_fragments_than_layers_are_refused_before_the_first_step(fragments, most):
    """Of two layers, of one, of a model without numbered layers; nothing has been trained yet."""
    layer = torch.nn.Linear(7, 7)
    net = {2: stacked(torch.nn.Tanh()), 1: torch.nn.Sequential(layer), 0: layer}[most]
    said = f"fragments={fragments} is more than the model's {most} layers: set schedule.fragments={max(1, most)}$"
    with pytest.raises(UserError, match=said):
        toy.outer(net, toy.alone(), schedule=Streaming(sync_every=12, fragments=fragments, delay=0))


def test_streaming_steps_by_hand():
    """H 6, P 2, delay 1: fragment 0 leaves at 3, 9, ..., fragment 1 at 6, 12, ...; each lands a step later."""
    schedule = Streaming(sync_every=6, fragments=2, delay=1)
    launches = {t: schedule.due(t).launch for t in range(1, 14) if schedule.due(t).launch}
    assert launches == {3: (Round(0, 0),), 6: (Round(0, 1),), 9: (Round(1, 0),), 12: (Round(1, 1),)}
    assert {t - 1: schedule.due(t).land for t in range(1, 14) if schedule.due(t).land} == launches
    assert schedule.inner_steps(2) == 13


def test_nothing_launches_as_the_last_round_lands():
    """H 5, P 2: fragment 0 leaves at 2 and 7, so with a delay of 2 it would leave again at step 5 + 2."""
    schedule = Streaming(sync_every=5, fragments=2, delay=1)
    assert [schedule.due(step).launch for step in (5, 6, 7)] == [(Round(0, 1),), (), (Round(1, 0),)]
    assert schedule.inner_steps(1) == 6


def test_bucketed_equals_whole():
    """One round of two fragments that leave at the same state moves what one whole round moves."""

    def work(exchange, **parts):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(7, 7), torch.nn.Linear(7, 3))
        loop = toy.outer(net, exchange, h=4, **parts)
        toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.1), exchange.rank, 0)
        for _ in range(5):
            loop.after_inner_step(1)
        return {name: p.detach().clone() for name, p in net.named_parameters()}

    whole = toy.run_workers(2, work)
    bucketed = toy.run_workers(2, lambda e: work(e, schedule=Streaming(sync_every=4, fragments=2, delay=1)))
    assert same_tensors(whole[0], bucketed[0])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Streaming(sync_every=6, fragments=2, delay=3), "below sync_every // fragments = 3"),
        (lambda: Streaming(sync_every=5, fragments=2, delay=2), "below sync_every // fragments = 2"),
        (lambda: Streaming(sync_every=2, fragments=3, delay=0), "sync_every=2: set schedule.fragments=2$"),
        (lambda: Streaming(sync_every=1, fragments=2, delay=0), "sync_every=1: set schedule.fragments=1$"),
        (lambda: Streaming(sync_every=0, fragments=1, delay=0), "sync_every=0 must be at least 1"),
        (lambda: Streaming(sync_every=30, fragments=7, delay=0).fragment(0, NAMES), "more than the model's 5 layers"),
    ],
)
def test_bad_settings_are_refused(make, said):
    with pytest.raises(UserError, match=said):
        make()
