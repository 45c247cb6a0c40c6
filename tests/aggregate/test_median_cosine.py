"""Weakening by the median cosine: by hand, for sparse payloads, and without an effect where peers do not agree."""

import itertools

import pytest
import torch

from outerloop.aggregate.mean import Mean
from outerloop.aggregate.median_clip import MedianClip
from outerloop.aggregate.median_cosine import MedianCosine, factors_of, median_cosines
from outerloop.aggregate.senders import Senders
from outerloop.config import load, part_checks

RULE = MedianCosine(of=Senders())


def of(rule, *peers):
    """The aggregate of these lists of numbers."""
    return rule([torch.tensor(x) for x in peers], [1] * len(peers), []).tolist()


def test_median_cosines_by_hand():
    peers = [torch.tensor(x) for x in ([3.0, 4.0], [4.0, 3.0], [5.0, 0.0], [-3.0, -4.0])]
    assert median_cosines(peers) == pytest.approx([0.6, 0.8, 0.6, 0.0])
    assert factors_of([0.6, 0.8, 0.6, 0.0]) == [1, 1, 1, 0]
    assert factors_of([0.8, 0.2, 0.4, 0.8, 0.9]) == [1, 0.5, 1, 1, 1], "fully from half of the median 0.8 on"
    assert factors_of([0.2, 0.4, 0.8, 1.0]) == [1, 1, 1, 1], "of four the second smallest: half of 0.4 is 0.2"
    assert factors_of([0.0, 0.0, 1.0, 1.0]) == [1, 1, 1, 1], "half do not agree with most others"
    assert factors_of([0.0, 0.0, 0.9]) == [1, 1, 1], "most do not agree with most others"


def test_a_flipped_sign_counts_nothing_and_is_not_a_sender():
    assert of(RULE, [3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [-3.0, -4.0]) == [3.0, 4.0]
    assert of(MedianCosine(of=Mean()), [3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [-3.0, -4.0]) == [2.25, 3.0]


@pytest.mark.parametrize("peers", [[[3.0, -1.0]], [[3.0, 0.0], [0.0, 5.0]], [[3.0, 1.0], [-3.0, -1.0]]])
def test_one_or_two_peers_are_averaged_as_they_are(peers):
    assert of(RULE, *peers) == of(Senders(), *peers)


SENT = torch.randn(8, 4000, generator=torch.Generator().manual_seed(0)).abs()
"""Positive values of eight peers, of which each keeps a tenth: two peers share a hundredth of the coordinates."""
SPARSE = SENT * (SENT.topk(400, dim=1).values[:, -1:] <= SENT)


@pytest.mark.parametrize("lie", ["flipped", "alone", "noise"])
def test_two_of_eight_sparse_payloads_in_a_wrong_direction_count_nothing(lie):
    honest, draw = list(SPARSE[:6]), torch.Generator().manual_seed(1)
    lies = {
        "flipped": [-SPARSE[6], -SPARSE[7]],
        "alone": [-x * ~(SPARSE[:6] != 0).any(0) for x in SPARSE[6:]],
        "noise": [x * torch.randn(4000, generator=draw).sign() for x in SPARSE[6:]],
    }[lie]
    factors = factors_of(median_cosines([*honest, *lies]))
    assert min(factors[:6]) > 0.9
    assert max(factors[6:]) == 0 if lie != "noise" else max(factors[6:]) < 0.5


@pytest.mark.parametrize(("peers", "liars"), [(3, 1), (4, 1), (5, 2), (7, 3), (8, 3)])
@pytest.mark.parametrize("sent", [SENT, SPARSE], ids=["dense", "sparse"])
def test_a_minority_with_flipped_signs_counts_nothing_whatever_the_number_of_peers(sent, peers, liars):
    honest = list(sent[: peers - liars])
    assert factors_of(median_cosines([*honest, *(-x for x in sent[peers - liars : peers])])) == [
        *[1.0] * (peers - liars),
        *[0.0] * liars,
    ]


def test_the_order_of_peers_and_a_common_scale_change_no_factor():
    peers = [*SPARSE[:3], -SPARSE[3]]
    expected = median_cosines(peers)
    for order in itertools.permutations(range(4)):
        assert median_cosines([peers[p] for p in order]) == [expected[p] for p in order]
    assert median_cosines([x * 2.0**40 for x in peers]) == expected


def test_a_rule_that_needs_norms_gets_those_of_the_weakened_contributions():
    seen = []

    class Records(Mean):
        needs_norms = True

        def __call__(self, sent, samples, norms):
            seen.extend(norms)
            return super().__call__(sent, samples, norms)

    peers = [torch.tensor([3.0, 4.0])] * 3 + [torch.tensor([-3.0, -4.0])]
    MedianCosine(of=Records())(peers, [1] * 4, [5.0] * 4)
    assert seen == [5, 5, 5, 0]
    assert MedianCosine(of=MedianClip(of=Mean())).needs_norms and not RULE.needs_norms


@pytest.mark.parametrize("recipe", ["sparseloco", "outerloop", "diloco"])
def test_it_works_with_sparse_rotated_and_dense_payloads(recipe):
    part_checks.check_parts(load.load([f"recipe={recipe}", "aggregate=median_cosine", "exchange=inprocess"]))
