"""Rounds that are made ready while inner steps go on leave as the same bytes as those that leave at once."""

import copy
import threading
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import outerloop
from outerloop.compress.uniform import Uniform
from outerloop.core import launch
from outerloop.core.memory_usage import estimate, measure
from outerloop.exchange.inprocess import InProcess, PendingRound
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.loco import LoCo
from outerloop.methods.noloco import NoLoCo
from outerloop.replica.gathered import Gathered
from outerloop.replica.island import Island
from outerloop.replica.rank_group import RankGroup
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from tests.support import tiny_gpt, toy
from tests.support.late_peer import fused
from tests.support.small_trainer import trainer_of
from tests.support.tensors import same_tensors

H, DELAY, STEPS = 4, 2, 18
CASES = {
    "fused": lambda: fused("sparseloco"),
    "fused, nesterov": lambda: fused("nesterov"),
    "fused, local": lambda: fused("local"),
    "fused, 8 bits": lambda: fused("eight_bit"),
    "fused, carried": lambda: fused("sparseloco") | {"merge_local": "carry"},
    "diloco": lambda: {"method": toy.sgd(0.7, 0.9, True), "feedback": ErrorFeedback(beta=0.9)},
    "loco": lambda: {"feedback": LoCo(beta=0.5, reset_every=3), "compress": Uniform(bits=4, chunk=16)},
    "carried": lambda: {"merge_local": "carry"},
    "merged": lambda: {"merge_local": 0.5},
    "streaming": lambda: {"schedule": Streaming(sync_every=H, fragments=2, delay=1), "merge_local": 0.5},
    "noloco": lambda: {"method": NoLoCo(alpha=0.5, beta=0.7, gamma=None, consensus="inside")},
    "buffers": lambda: {"buffers": "averaged"},
}


class Last:
    """The thread that makes rounds ready, as late as can be: when somebody asks for what it makes."""

    def __init__(self, *_):
        pass

    def submit(self, work, *args):
        future = Future()
        future.result = cache(lambda: work(*args))
        return future


class Concurrent(InProcess):
    info = replace(InProcess.info, concurrent=True)


def model(dtype):
    """Rows that go through the kernels, vectors that may not, and statistics that every step changes."""
    return nn.Sequential(*toy.model(width=20), nn.BatchNorm1d(3)).to(dtype)


def drawn(net, draw):
    """A step that nobody could guess."""
    with torch.no_grad():
        for x in (*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())):
            x += 0.1 * torch.randn(x.shape, generator=draw).to(x.dtype)


def trained(parts, make=InProcess, *, dtype=torch.float32, door=Island, announced=False):
    """Of both workers: every message that left, and all that training and landing moved."""

    def work(exchange):
        net = model(dtype)
        loop = toy.outer(
            net, exchange, **{"schedule": EveryH(sync_every=H, delay=DELAY)} | copy.deepcopy(parts), island=door(net)
        )
        loop.notifies_updates = announced
        assert bool(loop.launcher.thread) == (make is Concurrent)
        draw, blobs = torch.Generator().manual_seed(exchange.rank), []
        for _ in range(STEPS):
            if announced:
                loop.before_update()
            drawn(net, draw)
            reports = loop.after_inner_step(1)
            assert not any(report.failed for report in reports)
            blobs += [report.blob for report in reports]
        return blobs, net.state_dict(), dict(loop.slow), loop

    return toy.run_workers(2, work, make)


@pytest.mark.parametrize("as_late_as_can_be", [True, False])
@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_the_same_messages_and_the_same_model(case, dtype, announced, as_late_as_can_be, monkeypatch):
    if as_late_as_can_be:
        monkeypatch.setattr(launch, "ThreadPoolExecutor", Last)
    at_once = trained(CASES[case](), dtype=dtype)
    meanwhile = trained(CASES[case](), Concurrent, dtype=dtype, announced=announced)
    for one, other in zip(at_once, meanwhile, strict=True):
        assert one[0] == other[0] and len(one[0]) >= 4
        for ours, theirs in zip(one[1:3], other[1:3], strict=True):
            assert same_tensors(ours, theirs)


def test_islands_that_read_copies_need_no_others(monkeypatch):
    monkeypatch.setattr(launch, "ThreadPoolExecutor", Last)

    def door(net):
        return Gathered(net, RankGroup(None))

    at_once, meanwhile = (trained(CASES["fused"](), make, door=door) for make in (InProcess, Concurrent))
    assert [one[0] for one in at_once] == [one[0] for one in meanwhile]
    assert not meanwhile[0][3].pipeline.copies


def test_inner_steps_go_on_meanwhile():
    """The thread cannot end before the next inner step has begun, and the state of a run waits for it."""

    def work(exchange):
        gone_on, net = threading.Event(), toy.model()
        loop = toy.outer(net, exchange, schedule=EveryH(sync_every=2, delay=1))
        offer = loop.launcher.send
        loop.launcher.send = lambda *args: gone_on.wait(30) and offer(*args)
        for _ in range(2):
            loop.after_inner_step(1)
        [(round, leaving)] = loop.launcher.pending.items()
        assert not leaving.ready.done() and not loop.in_flight
        gone_on.set()
        assert [one["round"] for one in loop.evolved()["in_flight"]] == [[round.number, round.fragment]]
        assert not loop.launcher.pending

    toy.run_workers(1, work, Concurrent)


def test_a_peer_whose_launch_has_failed_leaves_the_run_when_it_closes():
    left = []

    class Leaving(Concurrent):
        def abort(self):
            left.append(self.peer)
            super().abort()

    def work(exchange):
        def failing(*args):
            raise OSError("no memory")

        loop = toy.outer(toy.model(), exchange, schedule=EveryH(sync_every=2, delay=1))
        loop.launcher.send = failing
        for _ in range(2):
            loop.after_inner_step(1)
        with pytest.raises(OSError, match="no memory"):
            loop.close()
        assert left == [exchange.peer]

    toy.run_workers(1, work, Leaving)


def begun(net, exchange, copies_end, **attached):
    """An attached loop after the step that launches, whose copy waits for an event; its optimizer."""
    loop = toy.outer(net, exchange, schedule=EveryH(sync_every=2, delay=1))
    copy_of = loop.launcher.copy
    loop.launcher.copy = lambda *args: copies_end.wait(30) and copy_of(*args)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    hook = outerloop.attach(optimizer, loop, **attached)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    for _ in range(2):
        optimizer.step()
    return loop, optimizer, hook


@pytest.mark.parametrize("how", ["step", "remove"])
def test_the_next_step_waits_for_the_copy(how):
    """A sole writer comes back from the step that launches before the copy is made, and may read the weights."""

    def work(exchange):
        ends, net = threading.Event(), toy.model()
        loop, optimizer, hook = begun(net, exchange, ends, sole_writer=True)
        [leaving], then = loop.launcher.pending.values(), [p.detach().clone() for p in net.parameters()]
        assert not leaving.copied.done() and loop.notifies_updates
        threading.Timer(0.2, ends.set).start()
        optimizer.step() if how == "step" else hook.remove()
        taken = leaving.copied.result()
        assert all(torch.equal(x, y) for x, y in zip(taken.read.values(), then, strict=True))
        assert loop.notifies_updates == (how == "step")

    toy.run_workers(1, work, Concurrent)


def test_else_the_copy_is_made_before_the_step_is_over():
    def work(exchange):
        ends = threading.Event()
        threading.Timer(0.2, ends.set).start()
        loop, _, _ = begun(toy.model(), exchange, ends)
        [leaving] = loop.launcher.pending.values()
        assert leaving.copied.done() and leaving.stall_s > 0.1 and not loop.notifies_updates

    toy.run_workers(1, work, Concurrent)


def test_a_loop_of_ones_own_learns_the_same_either_way(monkeypatch):
    monkeypatch.setattr(launch, "ThreadPoolExecutor", Last)
    text = Path(__file__).read_bytes()

    def with_hook(**attached):
        def work(exchange):
            def add(model, optimizer):
                options = ["schedule.sync_every=3", "schedule.delay=2"]
                outer = outerloop.from_recipe("sparseloco", model, *options, exchange=exchange)
                outerloop.attach(optimizer, outer, **attached)

            return tiny_gpt.train(text, steps=12, add=add)

        [(losses, model)] = toy.run_workers(1, work, Concurrent)
        return losses, model.state_dict()

    (losses, weights), (same, as_they) = with_hook(), with_hook(sole_writer=True)
    assert losses == same and same_tensors(weights, as_they)


def test_the_trainer_says_when_weights_change(monkeypatch):
    """Steps, evaluations and a state of before: what leaves is of the weights after the step that it leaves after."""
    monkeypatch.setattr(launch, "ThreadPoolExecutor", Last)

    def trained(exchange):
        trainer = trainer_of("inner.batch=2", "schedule.sync_every=3", "schedule.delay=2", exchange=exchange)
        start, windows, blobs = copy.deepcopy(trainer.state_dict()), torch.randint(0, 256, (2, 17)), []
        trainer.nats = lambda *_: [one.copied.result() for one in trainer.outer.launcher.pending.values()]
        for step in range(1, 10):
            blobs += [report.blob for report in trainer.step().rounds]
            if step == 6:
                trainer.evaluate(windows, start["outer"]["slow"], batch=2)
        left = [*trainer.outer.in_flight.values()] or [one.ready for one in trainer.outer.launcher.pending.values()]
        trainer.load_state_dict(start)
        return blobs + [one.result().blob if isinstance(one, Future) else one.blob for one in left]

    [at_once], [meanwhile] = (toy.run_workers(1, trained, make) for make in (InProcess, Concurrent))
    assert at_once == meanwhile and len(at_once) == 3


def test_a_round_that_may_land_early_has_one_inner_step_to_leave(monkeypatch):
    monkeypatch.setattr(launch, "ThreadPoolExecutor", Last)
    monkeypatch.setattr(PendingRound, "arrived", lambda self: True)

    def work(exchange):
        loop = toy.outer(toy.model(), exchange, schedule=EveryH(sync_every=8, delay=5, early=True))
        landed = [len(loop.after_inner_step(1)) for _ in range(7)]
        assert not any(landed) and not loop.launcher.pending and not loop.in_flight
        assert not loop.after_inner_step(1) and loop.launcher.pending and not loop.in_flight
        [report] = loop.after_inner_step(1)
        assert not report.failed and not loop.launcher.pending and not loop.in_flight

    toy.run_workers(1, work, Concurrent)


def test_values_that_are_not_finite_are_reported_before_they_could_land():
    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, exchange, schedule=EveryH(sync_every=3, delay=2))
        with torch.no_grad():
            net[1].bias[0] = torch.nan
        with pytest.raises(FloatingPointError, match=r"1\.bias"):
            for _ in range(5):
                loop.after_inner_step(1)
        assert not loop.launcher.pending and not loop.in_flight

    toy.run_workers(1, work, Concurrent)


@pytest.mark.parametrize(
    ("parts", "meanwhile"),
    [
        ({"schedule": EveryH(sync_every=3, delay=1)}, True),
        ({"schedule": EveryH(sync_every=3)}, False),
        ({"schedule": EveryH(sync_every=3, delay=3), "eager": True}, False),
        ({"schedule": EveryH(sync_every=1), "method": toy.sgd(0.1, reads="gradients")}, False),
    ],
)
def test_where_inner_steps_come_before_a_landing(parts, meanwhile):
    def work(exchange):
        return bool(toy.outer(toy.model(), exchange, **copy.deepcopy(parts)).launcher.thread)

    assert toy.run_workers(1, work, Concurrent) == [meanwhile]
    assert toy.run_workers(1, work) == [False]


@pytest.mark.parametrize("case", ["fused", "diloco", "carried"])
def test_the_copies_are_in_the_estimate_of_memory(case):
    def work(exchange):
        net = model(torch.float32)
        loop = toy.outer(net, exchange, schedule=EveryH(sync_every=H, delay=DELAY), **CASES[case]())
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        expected = estimate(loop, inner).parts["spare"]
        for _ in range(H + DELAY):
            loop.after_inner_step(1)
        return expected, measure(loop, inner).parts["spare"], sum(p.nbytes for p in net.parameters())

    [(expected, measured, of_model)] = toy.run_workers(1, work, Concurrent)
    assert expected == measured == of_model


def test_state_taken_over_while_a_round_is_leaving(monkeypatch):
    """The round ends first, of the weights that it was begun with, and is dropped then."""
    monkeypatch.setattr(launch, "ThreadPoolExecutor", Last)

    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, exchange, schedule=EveryH(sync_every=2, delay=1))
        content, started = toy.outer(toy.model(seed=5), exchange).shared_state.serialize(), []
        start = exchange.start
        exchange.start = lambda blob, round: started.append(loop.slow_hash) or start(blob, round)
        for _ in range(2):
            loop.after_inner_step(1)
        before, [round] = loop.slow_hash, loop.launcher.pending
        loop.loop.take_over(round, content)
        assert started == [before] != [loop.slow_hash] and not loop.launcher.pending and not loop.in_flight

    toy.run_workers(1, work, Concurrent)
