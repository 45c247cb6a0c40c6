"""DGC: momentum correction and momentum factor masking, by hand and by what they reduce to."""

import pytest
import torch

from outerloop.aggregate.senders import Senders
from outerloop.compress.cast import Cast
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.feedback.dgc import DGC
from outerloop.feedback.ef import ErrorFeedback
from outerloop.types import UserError
from tests.support import toy


def largest(x):
    """The largest magnitude alone."""
    return torch.where(x.abs() == x.abs().max(), x, 0.0)


def rounds(feedback, deltas, send):
    """What is offered in each round, and what is sent of it."""
    offered = []
    for delta in deltas:
        offered.append(feedback.add("w", torch.tensor(delta)))
        feedback.keep("w", offered[-1], send(offered[-1]))
    return [x.tolist() for x in offered]


def test_by_hand():
    """m = 1/2, the larger of two values is sent.

    u (0, 0) + (4, 2)    = (4, 2);  x = (4, 2),    sent (4, 0): u = (0, 2), v = (0, 2)
    u (0, 1) + (1, 1)    = (1, 2);  x = (1, 4),    sent (0, 4): u = (1, 0), v = (1, 0)
    u (1/2, 0) + (0, 1)  = (.5, 1); x = (1.5, 1),  sent (1.5, 0): u = (0, 1), v = (0, 1)
    """
    feedback = DGC(momentum=0.5)
    assert rounds(feedback, [[4.0, 2.0], [1.0, 1.0], [0.0, 1.0]], largest) == [[4.0, 2.0], [1.0, 4.0], [1.5, 1.0]]
    state = feedback.state_dict()
    assert state["velocity"]["w"].tolist() == [0.0, 1.0] and state["unsent"]["w"].tolist() == [0.0, 1.0]


def test_a_value_that_waits_gathers_its_momentum():
    """Nothing is sent of Δ = 1, 1, 1: u is 1, 1.5, 1.75, and v their sum, which momentum SGD would have moved by."""
    offered = rounds(DGC(momentum=0.5), [[1.0]] * 3, torch.zeros_like)
    assert offered == [[1.0], [2.5], [4.25]]


def test_what_a_codec_loses_of_a_value_is_offered_again_without_momentum():
    """Sent in steps of 1: .25 of 2.25 stays, and gathers no momentum."""
    assert rounds(DGC(momentum=0.5), [[2.25], [0.0], [0.0]], torch.floor) == [[2.25], [0.25], [0.25]]


def test_without_momentum_it_is_error_feedback_that_forgets_nothing():
    draw = torch.Generator().manual_seed(0)
    deltas = [torch.randn(50, generator=draw).tolist() for _ in range(6)]
    assert rounds(DGC(momentum=0.0), deltas, largest) == rounds(ErrorFeedback(beta=1.0), deltas, largest)


def test_if_everything_is_sent_there_is_no_momentum():
    assert rounds(DGC(momentum=0.9), [[1.0, -2.0]] * 3, lambda x: x) == [[1.0, -2.0]] * 3


def test_offering_changes_nothing():
    """A round that fails leaves the state as it was."""
    feedback = DGC(momentum=0.5)
    rounds(feedback, [[4.0, 2.0]], largest)
    delta = torch.tensor([1.0, 1.0])
    assert torch.equal(feedback.add("w", delta), feedback.add("w", delta)) and delta.tolist() == [1.0, 1.0]


def test_what_is_forgotten_has_no_effect():
    """Then 1 is new, so u = 1, and not 1 - 4."""
    feedback, nothing = DGC(momentum=0.5), torch.zeros(1)
    feedback.keep("w", torch.tensor([4.0]), nothing)
    feedback.forget("w")
    assert feedback.add("w", torch.ones(1)).tolist() == [1.0]
    feedback.keep("w", torch.ones(1), nothing)
    assert feedback.velocity["w"].tolist() == [1.0] and feedback.unsent["w"].tolist() == [1.0]


def parts():
    """Of one worker whose payloads hold two of sixteen values."""
    codec = TopK(chunk=16, k=2, values=Cast(dtype="bfloat16"), index=Rice())
    return {"feedback": DGC(momentum=0.9), "compress": codec, "aggregate": Senders()}


def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_stopped():
    _, half, _ = toy.restarted(parts, steps=12, stop_at=7)
    state = half[0][1]["feedback"]
    assert state["velocity"].keys() == state["unsent"].keys() == half[0][1]["slow"].keys()
    assert any(x.any() for x in state["velocity"].values())


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_momentum_out_of_range_is_refused(momentum):
    with pytest.raises(UserError, match=r"set feedback\.momentum=0\.9"):
        DGC(momentum=momentum)


def test_a_method_with_momentum_is_refused_in_one_sentence():
    with pytest.raises(UserError, match="would apply it again: set method=sgd, or feedback=ef") as error:
        toy.outer(toy.model(), InProcess(hub=Hub(2), rank=0), **parts(), method=toy.sgd(0.7, 0.9, True))
    assert "\n" not in str(error.value)
    toy.outer(toy.model(), InProcess(hub=Hub(2), rank=0), **parts() | {"compress": Identity()}, method=toy.sgd())
