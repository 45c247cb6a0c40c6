"""schedule.early: each peer lands a round once its bytes are in, whatever the others do, and all stay equal."""

import pytest
import torch

from outerloop.config import instantiate, island_checks, load
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.feedback.ef import ErrorFeedback
from outerloop.methods.noloco import NoLoCo
from outerloop.schedule.adaptive import Adaptive
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from outerloop.types import UserError
from tests.support import toy
from tests.support.late_peer import fused
from tests.support.toy_workers import report, worker_of


class InAfter(toy.Around):
    """An exchange whose bytes are in so many inner steps after the launch, by worker and round."""

    def __init__(self, inner, steps):
        super().__init__(inner)
        self.steps = steps

    def start(self, blob, round):
        return Arriving(self.inner.start(blob, round), self.steps(self.inner.rank, round.number))


class Arriving(toy.Changed):
    def __init__(self, pending, steps):
        super().__init__(pending, lambda messages: messages)
        self.left = steps

    def arrived(self):
        """Asked after each inner step, that of the launch included."""
        self.left -= 1
        return self.left < 0


def every_h(**how):
    return EveryH(sync_every=6, **how)


def streaming(**how):
    return Streaming(sync_every=12, fragments=2, **how)


CASES = {
    "diloco": lambda: {"method": toy.sgd(0.7, 0.9, True), "feedback": ErrorFeedback(beta=0.9)},
    "sparseloco": lambda: fused("sparseloco"),
    "sparseloco carried": lambda: fused("sparseloco") | {"merge_local": "carry"},
    "merged": lambda: {"merge_local": 0.5},
    "noloco": lambda: {"method": NoLoCo(alpha=0.5, beta=0.7, gamma=None, consensus="inside")},
}


def gossip(hub, rank):
    return InProcessGossip(hub=hub, rank=rank, group=2, seed=0)


def landings(case, schedule, steps, size=2):
    """By worker, of each landing: inner step, hash of the slow weights; and the fast weights at the end."""

    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, InAfter(exchange, steps), schedule=schedule, **CASES[case]())
        inner, seen = torch.optim.SGD(net.parameters(), lr=0.1), []
        for step in range(30):
            toy.inner_step(net, inner, exchange.rank, step)
            seen += [(loop.inner_step, report.slow_hash) for report in loop.after_inner_step(1)]
        return seen, [p.detach().clone() for p in net.parameters()]

    return toy.run_workers(size, work, gossip if case == "noloco" else toy.InProcess)


@pytest.mark.parametrize("make", [every_h, streaming], ids=["whole", "streaming"])
@pytest.mark.parametrize("case", CASES)
def test_bytes_that_are_in_after_two_steps_land_as_with_a_delay_of_two(case, make):
    early = landings(case, make(delay=4, early=True), lambda rank, number: 2)
    fixed = landings(case, make(delay=2), lambda rank, number: 99)
    for (seen, weights), (expected, others) in zip(early, fixed, strict=True):
        assert seen == expected and all(torch.equal(x, y) for x, y in zip(weights, others, strict=True))


def test_each_lands_on_its_own_and_at_the_latest_when_due_by_hand():
    """H = 6, at most 4 later. Worker 0 after 1, 3, 1, 3 steps, worker 1 after 0 and worker 2 never before it is due."""
    after = lambda rank, number: ((1, 3)[number % 2], 0, 99)[rank]  # noqa: E731
    told = landings("diloco", every_h(delay=4, early=True), after, size=3)
    assert [[step for step, _ in seen] for seen, _ in told] == [[7, 15, 19, 27], [6, 12, 18, 24, 30], [10, 16, 22, 28]]


@pytest.mark.parametrize("make", [every_h, streaming], ids=["whole", "streaming"])
@pytest.mark.parametrize("case", sorted(CASES.keys() - {"noloco"}))
def test_slow_weights_are_alike_whenever_peers_land(case, make):
    after = lambda rank, number: (5 * rank + 3 * number) % 7  # noqa: E731
    (one, _), *others = landings(case, make(delay=4, early=True), after, size=3)
    assert any([step for step, _ in seen] != [step for step, _ in one] for seen, _ in others)
    rounds = min(len(seen) for seen, _ in [(one, None), *others])
    assert rounds >= 4
    for seen, _ in others:
        assert [slow for _, slow in seen[:rounds]] == [slow for _, slow in one[:rounds]]


def test_an_h_that_moves_is_the_same_whenever_peers_land():
    make = lambda: Adaptive(sync_every=5, sync_min=4, sync_max=9, low=0.3, high=0.6, delay=3, early=True)  # noqa: E731

    def work(exchange):
        net, schedule = toy.model(), make()
        loop = toy.outer(net, InAfter(exchange, lambda rank, number: (2 * rank + number) % 4), schedule=schedule)
        inner, seen = torch.optim.SGD(net.parameters(), lr=0.1), []
        for step in range(48):
            toy.inner_step(net, inner, exchange.rank, step)
            seen += [(schedule.state_dict(), report.slow_hash) for report in loop.after_inner_step(1)]
        return seen[:5]

    one, *others = toy.run_workers(3, work)
    assert len(one) == 5 and len({state["sync_every"] for state, _ in one}) > 1
    assert all(other == one for other in others)


def test_all_save_after_the_same_inner_step():
    def work(exchange):
        events = []
        worker = worker_of(exchange, events)
        worker.evaluation.evaluate = lambda round_number: None
        worker.save = lambda: events.append({"event": "saved", "step": worker.step})
        worker.trainer.outer.schedule = every_h(delay=4, early=True)
        worker.trainer.outer.loop.inner_step = 25 + exchange.rank  # the last of four rounds, which is due after step 28
        worker.after_round(report(3, ""))
        for step in range(25 + exchange.rank, 31):
            worker.trainer.outer.loop.inner_step = step
            worker.save_when_due()
        return [event["step"] for event in events if event["event"] == "saved"]

    assert toy.run_workers(2, work) == [[28], [28]]


@pytest.mark.parametrize(
    ("option", "typed"),
    [
        ("schedule=every_h schedule.sync_every=8 schedule.delay=0", "schedule.delay=4, or schedule.early=false"),
        ("schedule=every_h schedule.sync_every=8 schedule.delay=8", "schedule.delay=4, or schedule.early=false"),
        ("schedule=streaming schedule.delay=0", "schedule.delay=1, or schedule.early=false"),
    ],
)
def test_without_a_delay_nothing_is_early(option, typed):
    with pytest.raises(UserError, match="set " + typed) as error:
        instantiate.make(load.compose_config([*option.split(), "schedule.early=true"]).schedule)
    assert "\n" not in str(error.value)


def test_a_model_of_several_processes_is_refused():
    """They must land together, and each has bytes of its own: they land when due, once `schedule.early` is off."""
    settings = load.load(["recipe=sparseloco", "schedule.early=true", "schedule.delay=3"])
    island_checks.refuse_single_process_options(settings, 1)
    with pytest.raises(UserError, match=r"schedule\.early=true requires a model held by one process, but 2 processes"):
        island_checks.refuse_single_process_options(settings, 2)
