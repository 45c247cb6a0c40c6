"""Peers of unequal speed: rounds by the clock, own batch sizes, own numbers of inner steps; weighed by samples."""

import json
import threading
from types import SimpleNamespace

import pytest
import torch

from outerloop.aggregate.weighted import Weighted
from outerloop.config import load
from outerloop.core import round_scheduler
from outerloop.core.compatibility import warnings
from outerloop.core.round_scheduler import StepClock
from outerloop.inner.stop_point import StopPoint
from outerloop.launcher.train import train
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.every_seconds import EverySeconds
from outerloop.types import UserError
from tests.support import toy


@pytest.fixture
def clock(monkeypatch):
    """A clock that each thread moves by hand."""
    here = threading.local()
    monkeypatch.setattr(round_scheduler, "time", SimpleNamespace(monotonic=lambda: getattr(here, "now_s", 100.0)))

    def move(seconds):
        here.now_s = getattr(here, "now_s", 100.0) + seconds

    return move


def test_steps_of_the_clock_by_hand(clock):
    """Steps of .5 s, from the first call on; what is left over is carried; a landing takes it away."""
    one, passed = StepClock(0.5), []
    for seconds in (9.0, 0.25, 0.25, 0.75, 0.25, 1.75):
        clock(seconds)
        passed.append(one.passed())
    assert passed == [0, 0, 1, 1, 1, 3]
    clock(0.25)
    one.restart()
    clock(0.25)
    assert one.passed() == 0
    clock(0.25)
    assert one.passed() == 1


def test_without_seconds_every_inner_step_counts(clock):
    assert [StepClock(0.0).passed() for _ in range(3)] == [1, 1, 1]


def rounds_of(exchange, clock, *, step_s, batch=1, steps=200, rounds=2, schedule=None):
    """A worker whose inner steps take this long: after how many of its own steps rounds landed; what it had offered."""
    net = toy.model()
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    loop = toy.outer(net, exchange, schedule=schedule or EverySeconds(seconds=2.0, sync_every=4), aggregate=Weighted())
    inner, landed, offered = torch.optim.SGD(net.parameters(), lr=0.1), [], []
    for step in range(steps):
        toy.inner_step(net, inner, exchange.rank, step)
        clock(step_s)
        before = {name: start[name] - p.detach() for name, p in net.named_parameters()}
        for report in loop.after_inner_step(batch):
            landed.append((report.round.number, step + 1, report.samples))
            offered.append(before)
            assert not report.failed
        if len(landed) == rounds:
            return landed, offered, dict(loop.slow), loop.slow_hash, start
    raise AssertionError("no rounds")


def test_rounds_by_the_clock_are_of_what_each_has(clock):
    """S = 2 s: a peer of .25 s a step takes 8 of them (and the first, that starts the clock), one of .75 s 3."""
    fast, slow = toy.run_workers(2, lambda e: rounds_of(e, clock, step_s=(0.25, 0.75)[e.rank], batch=(4, 2)[e.rank]))
    assert fast[0] == [(0, 9, 36), (1, 17, 32)]
    assert slow[0] == [(0, 4, 8), (1, 7, 6)]
    assert fast[3] == slow[3]


def test_a_step_longer_than_a_round_is_one_round(clock):
    [(landed, *_)] = toy.run_workers(1, lambda e: rounds_of(e, clock, step_s=9.0, rounds=3))
    assert landed == [(0, 2, 2), (1, 3, 1), (2, 4, 1)]


def test_a_round_lands_its_delay_later(clock):
    """Counted steps of .5 s: leaves after 2 s, lands after 2.5 s, and the next leaves 1.5 s after that landing."""
    schedule = EverySeconds(seconds=2.0, sync_every=4, delay=1)
    [(landed, *_)] = toy.run_workers(1, lambda e: rounds_of(e, clock, step_s=0.25, schedule=schedule))
    assert [step for _, step, _ in landed] == [1 + 10, 1 + 10 + 8]


def test_an_inner_step_that_counts_as_several_stops_where_the_other_workers_stop(clock):
    """Counted steps of .5 s. While no target is known, none is added; the time that is left is counted later."""
    loop, point = toy.outer(toy.model(), toy.alone(), schedule=EverySeconds(seconds=20.0, sync_every=40)), StopPoint()
    loop.limit_steps(point.extend_step)

    def count(seconds):
        clock(seconds)
        loop.after_inner_step(1)
        return loop.inner_step

    assert point.begin_step(0) and count(1.0) == 0
    assert point.begin_step(0) and count(1.5) == point.begun == 3
    assert point.begin_step(3) and point.request() == 4 and count(3.0) == 4
    point.set_target(6)
    assert point.begin_step(4) and count(0.0) == 6
    assert not point.begin_step(6) and count(0.0) == 9, "with a round in flight, training continues"


def test_own_numbers_of_inner_steps_weigh_by_samples(clock):
    """H of 6 and of 2: the slow weights go to the sample-weighted mean of what both have learned."""

    def live(exchange):
        return rounds_of(exchange, clock, step_s=0.0, rounds=1, schedule=EveryH(sync_every=(6, 2)[exchange.rank]))

    one, other = toy.run_workers(2, live)
    assert one[0] == [(0, 6, 6)] and other[0] == [(0, 2, 2)] and one[3] == other[3]
    for name, start in one[4].items():
        mean = 0.75 * one[1][0][name] + 0.25 * other[1][0][name]
        torch.testing.assert_close(one[2][name], start - mean)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_seconds_must_be_positive(seconds):
    with pytest.raises(UserError, match=r"schedule\.seconds=.* must be more than 0: set schedule\.seconds=60"):
        EverySeconds(seconds=seconds, sync_every=4)


def test_a_gradient_method_is_refused_and_momentum_is_not_doubted():
    parts = {"compress": toy.Identity(), "feedback": toy.NoFeedback(), "eager": False, "merge_local": 0.0}
    schedule = EverySeconds(seconds=60.0, sync_every=1)
    assert not warnings(method=toy.sgd(momentum=0.9), schedule=schedule, **parts)
    with pytest.raises(UserError, match=r"every single step: set schedule=every_h schedule\.sync_every=1"):
        toy.run_workers(1, lambda e: toy.outer(toy.model(), e, method=toy.sgd(reads="gradients"), schedule=schedule))


@pytest.mark.long
def test_a_run_by_the_clock(tmp_path):
    """Real seconds; rounds, learning rate and log go by counted steps, and checkpoints too."""
    small = ["model=nano", "workers=2", "eval.sequences=16", "inner.seq_len=32", "inner.batch=4", "exchange=inprocess"]
    timed = ["recipe=diloco", "schedule=every_seconds", "schedule.seconds=0.4", "schedule.sync_every=4", "rounds=3"]
    train(load.load([*small, *timed, "aggregate=weighted", "log_every=2", f"run_dir={tmp_path}/run"]))
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["rounds"] == 3 and summary["rounds_failed"] == 0 and len(set(summary["slow_hash"])) == 1
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["event"] == "round" and row["worker"] == 0] == [4, 8, 12]
    assert (tmp_path / "run/checkpoints/step-00000012/sealed").exists()
