"""How much of a payload another one repeats: counted by hand, and with the payloads of a compressor."""

from random import Random

import torch

from outerloop.scores.overlap import SAMPLE, PayloadSampler, closest, overlaps
from tests.support.scored_messages import message_of
from tests.support.small_trainer import trainer_of


def sparse(*positions, value=1.0):
    x = torch.zeros(100)
    x[list(positions)] = value
    return x


def overlap(one, other):
    """The overlap of two payloads."""
    return overlaps([one], [other]).item()


def test_sparse_payloads_are_compared_by_position():
    assert overlap([sparse(1, 2, 3, 4)], [sparse(3, 4, 5, 6, value=9.0)]) == 0.5
    assert overlap([sparse(1, 2)], [sparse(1, 2, 3, 4)]) == 0.5  # half of the larger one
    assert overlap([sparse(1), sparse(1, 2, 3)], [sparse(1), sparse(4, 5, 6)]) == 1 / 4
    assert overlap([torch.ones(100)], [sparse(*range(15))]) == 0.15  # a bait of few values has no copies
    assert overlap([sparse()], [sparse(1)]) == 0.0


def test_dense_payloads_are_compared_by_magnitude():
    draw = torch.Generator().manual_seed(0)
    one, other = torch.rand(100, generator=draw), torch.rand(100, generator=draw)
    assert overlap([one], [other]) == 0.0
    half = torch.cat([one[:50], other[50:]])
    assert overlap([one], [half]) == 0.5


def test_all_pairs_at_once_are_those_one_by_one():
    draw = torch.Generator().manual_seed(0)
    dense = [torch.rand(100, generator=draw) for _ in range(3)]
    payloads = [[sparse(*range(p, 3 * p + 2)), x] for p, x in enumerate([*dense, dense[0], sparse(4, 5)])]
    found = overlaps(payloads, payloads[1:])
    assert found.tolist() == [[overlap(one, other) for other in payloads[1:]] for one in payloads]
    assert found[1:].diagonal().tolist() == [1.0] * 4
    assert 0.9 < found[0, 2] < 1.0, "the same dense tensor, another sparse one"


def test_the_closest_payload():
    others = {"a": [sparse(1, 9)], "b": [sparse(1, 2)], "c": [sparse(8)]}
    assert closest({"x": [sparse(1, 2)], "c": [sparse(8, 9)]}, others) == {"x": ("b", 1.0), "c": ("c", 0.5)}
    assert closest({"x": [sparse(1, 2)]}, {}) == {"x": ("", 0.0)}
    assert closest({}, others) == {}


def test_a_copy_with_flipped_signs_repeats_everything_and_independent_payloads_little():
    outer = trainer_of("recipe=sparseloco").outer
    sampler = PayloadSampler(outer.codec, outer.slow, Random(0))
    draw = torch.Generator().manual_seed(0)
    one, other = ({name: torch.randn(x.shape, generator=draw) for name, x in outer.slow.items()} for _ in range(2))
    flipped = {name: -x for name, x in one.items()}
    sample = sampler.sample(message_of(outer, "a", one))
    assert sample and all(0 < len(x) <= SAMPLE for x in sample)
    assert overlap(sample, sampler.sample(message_of(outer, "b", flipped, number=1))) == 1.0
    assert overlap(sample, sampler.sample(message_of(outer, "c", other))) < 0.1  # 128 of 4096 positions: 3 % by chance
