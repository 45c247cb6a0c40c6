"""Rounds that land later than they leave: inner steps in between, and a restart in between."""

import pytest
import torch

from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.core.outer_loop import OuterLoop
from outerloop.core.round import InFlight
from outerloop.feedback.ef import ErrorFeedback
from outerloop.schedule.every_h import EveryH
from outerloop.types import Round, RoundFailed, UserError
from tests.support import toy
from tests.support.failing_exchange import Failing


def test_a_lone_trainer_loses_no_step_to_a_delayed_landing():
    """Carried: φ becomes what θ was, and θ stays what it is; replaced, the steps since the launch are gone."""

    def work(exchange, **parts):
        net = toy.model()
        loop = toy.outer(net, exchange, **parts)
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(14):
            toy.inner_step(net, inner, 0, step)
            loop.after_inner_step(1)
        return [p.detach() for p in net.parameters()]

    late = {"schedule": EveryH(sync_every=4, delay=2)}
    [never] = toy.run_workers(1, lambda e: work(e, h=100))
    [carried] = toy.run_workers(1, lambda e: work(e, merge_local="carry", **late))
    [replaced] = toy.run_workers(1, lambda e: work(e, **late))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(carried, never, strict=True))
    assert not any(torch.allclose(a, b, atol=1e-4) for a, b in zip(replaced, never, strict=True))


@pytest.mark.parametrize("merge_local", [0.5, "carry"])
def test_a_delayed_round_survives_a_restart(merge_local):
    """Saved between launch and landing: the message and what was offered are saved, and it lands bit for bit."""

    def parts():
        compress = TopK(chunk=16, k=4, values=TwoBit(chunk=None), index=Rice())
        late = {"schedule": EveryH(sync_every=3, delay=2), "merge_local": merge_local}
        return late | {"compress": compress, "feedback": ErrorFeedback(beta=0.9)}

    _, half, _ = toy.restarted(parts, steps=11, stop_at=4)
    assert len(half[0][1]["in_flight"]) == 1


def lean(**method):
    """Parts whose matrices go through the fused pipeline, unless the method clips."""
    compress = TopK(chunk=16, k=4, values=TwoBit(chunk=None), index=Rice())
    return {"compress": compress, "feedback": ErrorFeedback(beta=0.9), "method": toy.sgd(**method)}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({"merge_local": 0.0}, {"merge_local": "carry"}, "another merge_local than carry"),
        ({"merge_local": "carry"}, {"merge_local": 0.5}, "launched with merge_local=carry"),
        (lean(), lean(clip_norm=10.0), "the options of this run would land differently"),
        (lean(clip_norm=10.0), lean(), "the options of this run would land differently"),
    ],
    ids=["replaced to carried", "carried to merged", "fused to dense", "dense to fused"],
)
def test_a_round_in_flight_does_not_land_with_options_of_another_kind(before, after, why):
    """It would double the weights, or put the slow weights into the residual."""

    def work(exchange):
        late = EveryH(sync_every=3, delay=2)
        saved = toy.outer(toy.model(), exchange, schedule=late, **before)
        for _ in range(3):
            saved.after_inner_step(1)
        resumed = toy.outer(toy.model(), exchange, schedule=late, **after)
        with pytest.raises(UserError, match=why):
            resumed.load_state_dict(saved.state_dict())
        assert resumed.inner_step == 0 and not resumed.in_flight

    toy.run_workers(1, work)


def test_a_round_in_flight_of_an_earlier_version_is_restored():
    """Its keys had other names."""

    def work(exchange):
        flight = InFlight(
            Round(3), {"w": torch.ones(2)}, b"blob", exchange.start(b"blob", Round(3)), samples=5, launch_s=0.0,
            delta_norm=1.0, fast_at_launch={"w": torch.zeros(2)},
        )  # fmt: skip
        saved = flight.state_dict()
        earlier = {{"update": "offered", "fast_at_launch": "then"}.get(key, key): value for key, value in saved.items()}
        assert {"offered", "then"} <= earlier.keys() and not {"offered", "then"} & saved.keys()
        return saved, [InFlight.resumed(state, exchange).state_dict() for state in (saved, earlier)]

    [(saved, restored)] = toy.run_workers(1, work)
    assert restored == [saved, saved]


def test_a_failed_round_ends_a_run_with_eager_updates():
    """Each replica has taken its own part of the round, which only the mean could have made equal on both."""

    def work(exchange):
        late = {"schedule": EveryH(sync_every=2, delay=2), "eager": True}
        net = toy.model()
        loop = toy.outer(net, Failing(exchange, {1}), **late)
        inner, reports = torch.optim.SGD(net.parameters(), lr=0.1), []
        for step in range(5):
            toy.inner_step(net, inner, exchange.rank, step)
            reports += loop.after_inner_step(1)
        assert [report.failed for report in reports] == [""]
        toy.inner_step(net, inner, exchange.rank, 5)
        with pytest.raises(RoundFailed, match=r"round 2: told so; .* resume all peers from the last checkpoint"):
            loop.after_inner_step(1)

    toy.run_workers(2, work)


@pytest.mark.parametrize(("delay", "steps", "lost"), [(2, 8, "2"), (2, 9, "2"), (2, 10, ""), (0, 8, ""), (4, 12, "")])
def test_a_peer_that_leaves_before_a_round_lands_is_warned(delay, steps, lost, caplog):
    """With eager updates, the next round launches just when a round lands."""

    def leave(exchange, how):
        late = {"schedule": EveryH(sync_every=4, delay=delay), "eager": delay == 4}
        loop = toy.outer(toy.model(), exchange, **late)
        for _ in range(steps):
            loop.after_inner_step(1)
        how(loop)

    toy.run_workers(1, lambda exchange: leave(exchange, OuterLoop.abort))
    assert not caplog.messages
    toy.run_workers(1, lambda exchange: leave(exchange, OuterLoop.close))
    said = "".join(caplog.messages)
    assert said.startswith(f"this peer leaves before round {lost} lands, so") == bool(said) == bool(lost)
    assert not lost or said.endswith("end training schedule.delay=2 inner steps after a round launches")
