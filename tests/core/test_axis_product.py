"""The product is closed: a point that is accepted computes its plain definition, one that is refused says what to type.

Every choice of configs/ enters by itself. By default every method meets every compressor, with the other axes and flags
drawn; the slow test takes every point of the six axes, with flags drawn.
"""

import itertools
import random
from collections import Counter

import pytest

from outerloop.core import compatibility, round_scheduler
from tests.support import axis_product, reference_round

OTHERS = [(axis, choice) for axis in axis_product.AXES for choice in axis_product.CHOICES[axis]]


@pytest.fixture
def clock(monkeypatch):
    """Rounds by seconds go by a clock that inner steps move."""
    made = axis_product.Clock()
    monkeypatch.setattr(round_scheduler, "time", made)
    return made


def holds(point, clock):
    """Train it and compare it with the definition; the point in the message of what does not hold."""
    try:
        reference_round.Definition(point, axis_product.trained(point, clock), axis_product.SEED).check()
    except Exception as error:
        raise AssertionError(f"{axis_product.shown(point)}: {type(error).__name__} {error}") from error


def says_why(point, why):
    """One line that says what to set."""
    assert ("set " in why or "type " in why) and "\n" not in why, (axis_product.shown(point), why)


MAY_BE_REFUSED = {"average", "noloco"}
"""Methods that most compressors do not fit. Of eight points with ddp and topk_int8, none fits either."""


@pytest.mark.parametrize("compress", axis_product.CHOICES["compress"])
def test_an_accepted_point_computes_its_definition(compress, clock):
    for method in axis_product.CHOICES["method"]:
        point, refused = axis_product.accepted(0, 8, compress=compress, method=method)
        assert point or method in MAY_BE_REFUSED or (compress, method) == ("topk_int8", "ddp")
        for other, why in refused:
            says_why(other, why)
        if refused:
            assert axis_product.refusal_of_loop(refused[0][0]) == refused[0][1]
        if point:
            holds(point, clock)


BASE = {
    "method": "diloco", "compress": "identity", "feedback": "none", "aggregate": "mean", "exchange": "inprocess",
    "schedule": "every_h", "merge_local": 0.0, "eager": False, "buffers": "local", "state_dtype": "float32",
    "delay": 0, "early": False, "reads": "weights",
}  # fmt: skip
EAGER = {"eager": True, "delay": "H"}
WRONG = [
    EAGER | {"aggregate": "weighted"},
    EAGER | {"aggregate": "median_clip"},
    EAGER | {"aggregate": "rda"},
    EAGER | {"aggregate": "senders", "compress": "topk"},
    EAGER | {"feedback": "ef", "compress": "int4"},
    EAGER | {"method": "average"},
    EAGER | {"method": "noloco"},
    {"method": "noloco", "exchange": "inprocess_gossip", "aggregate": "weighted"},
    {"method": "average", "compress": "topk"},
    {"method": "average", "compress": "randomk", "feedback": "ef"},
    {"method": "sgd", "reads": "gradients", "merge_local": 0.5},
]


@pytest.mark.parametrize("change", WRONG, ids=axis_product.shown)
def test_a_refused_point_would_not_compute_its_definition(change, clock, monkeypatch):
    """Points that were accepted once."""
    point = BASE | change
    says_why(point, axis_product.refusal(point))
    monkeypatch.setattr(compatibility, "refuse", lambda **parts: None)
    with pytest.raises(AssertionError):
        holds(point, clock)


ROBUST = [{"aggregate": name} for name in ("centered_clip", "geometric_median", "trust", "median_cosine")]


@pytest.mark.parametrize("change", [{}, EAGER, *ROBUST], ids=axis_product.shown)
def test_each_changed_point_computes_its_definition(change, clock):
    holds(BASE | change, clock)


@pytest.mark.parametrize("compress", ["identity", "int8"])
@pytest.mark.parametrize("schedule", [{}, {"schedule": "streaming", "delay": 1}], ids=axis_product.shown)
def test_weights_from_afar_are_their_definition(compress, schedule, clock, monkeypatch):
    """One of three peers learns from targets six times as large, so that for the others it is far away."""
    drawn = axis_product.batch

    def batch(rank, step):
        x, y = drawn(rank, step)
        return x, y * (6 if rank == 1 else 1)

    monkeypatch.setattr(axis_product, "batch", batch)
    point = BASE | {"method": "noloco", "exchange": "swarm_gossip", "compress": compress} | schedule
    assert not axis_product.refusal(point)
    definition = reference_round.Definition(point, axis_product.trained(point, clock), axis_product.SEED)
    definition.check()
    assert definition.clipped, "somebody was too far away"


@pytest.mark.parametrize(("axis", "choice"), OTHERS)
def test_every_choice_works_with_something(axis, choice):
    point, _ = axis_product.accepted(0, 1000, **{axis: choice})
    assert point, f"{axis}={choice} is refused in 1000 points"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("compress", axis_product.CHOICES["compress"])
def test_the_whole_product(compress, clock):
    """All points are accepted or say why not; of those that are accepted one in twelve is trained."""
    axes = [
        [(axis, choice) for choice in axis_product.CHOICES[axis]] for axis in axis_product.AXES if axis != "compress"
    ]
    failed, count = [], Counter()
    for choices in itertools.product(*axes):
        fixed = dict(choices) | {"compress": compress}
        rng = random.Random(str(fixed))
        point = axis_product.drawn(rng, **fixed)
        if why := axis_product.refusal(point):
            says_why(point, why)
            count["refused"] += 1
        elif rng.random() < 1 / 12:
            count["trained"] += 1
            failed += not_held(point, clock)
        else:
            count["accepted"] += 1
    print(f"\n{compress}: {dict(count)}, {len(failed)} do not hold", flush=True)
    assert not failed, "\n".join(failed)


def not_held(point, clock):
    """What is wrong with a point, or nothing."""
    try:
        holds(point, clock)
    except AssertionError as error:
        return [str(error)]
    return []
