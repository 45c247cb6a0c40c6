"""How much of a payload another one repeats: counted by hand, and with the payloads of a compressor."""

from random import Random

import torch

from outerloop.scores.overlap import SAMPLE, PayloadSampler, closest, overlap
from tests.support.scored_messages import message_of
from tests.support.small_trainer import trainer_of


def sparse(*positions, value=1.0):
    x = torch.zeros(100)
    x[list(positions)] = value
    return x


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


def test_the_closest_payload():
    others = {"a": [sparse(1, 9)], "b": [sparse(1, 2)], "c": [sparse(8)]}
    assert closest([sparse(1, 2)], others) == ("b", 1.0)
    assert closest([sparse(1, 2)], {}) == ("", 0.0)


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
