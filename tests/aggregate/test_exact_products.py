"""Scalar products of all pairs: by hand, and the same bits as one pair at a time."""

import itertools
import math

import pytest
import torch

from outerloop.aggregate import exact_products
from outerloop.aggregate.exact_norms import sum_of_products
from outerloop.aggregate.exact_products import sums_of_products, where_nonzero

DRAW = torch.Generator().manual_seed(0)
DENSE = torch.randn(5, 40, 25, generator=DRAW) * torch.tensor([1.0, 1e-30, 1e30, 3.0, 1.0]).view(5, 1, 1)
SPARSE = DENSE * (torch.rand(5, 40, 25, generator=DRAW) < 0.1)


def pairwise(tensors):
    """The same matrix, from one call of sum_of_products for each pair."""
    return [[sum_of_products(x, y, of=x.numel()) for y in tensors] for x in tensors]


def test_products_by_hand():
    tensors = [torch.tensor(x) for x in ([3.0, 4.0, 0.0], [0.5, -2.0, 8.0], [0.0, 0.0, 0.0])]
    assert sums_of_products(tensors) == [[25.0, -6.5, 0.0], [-6.5, 68.25, 0.0], [0.0, 0.0, 0.0]]
    assert sums_of_products([torch.zeros(0)] * 2) == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("block", [1, 7, 999, 1 << 15])
@pytest.mark.parametrize(
    "tensors",
    [DENSE, SPARSE, torch.cat([DENSE[:2], SPARSE[2:]]), SPARSE.double() / 3, DENSE[:1]],
    ids=["dense", "sparse", "mixed", "float64", "alone"],
)
def test_the_bits_are_those_of_single_products(monkeypatch, tensors, block):
    monkeypatch.setattr(exact_products, "BLOCK", block)
    found = sums_of_products(list(tensors))
    assert found == pairwise(tensors)
    for p, q in itertools.combinations(range(len(tensors)), 2):
        exact = math.fsum((tensors[p].double() * tensors[q].double()).flatten().tolist())
        norms = float(tensors[p].double().norm() * tensors[q].double().norm())
        assert found[p][q] == pytest.approx(exact, abs=1e-9 * norms)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_products_with_a_value_that_is_not_finite_are_infinite(value):
    broken = torch.tensor([1.0, value])
    tensors = [torch.tensor([1.0, 2.0]), broken, torch.zeros(2)]
    inf = math.inf
    assert sums_of_products(tensors) == [[5.0, inf, 0.0], [inf, inf, inf], [0.0, inf, 0.0]] == pairwise(tensors)


def test_products_that_overflow_are_infinite_with_their_sign():
    huge = torch.tensor([1e300], dtype=torch.float64)
    assert sums_of_products([huge, -huge]) == [[math.inf, -math.inf], [-math.inf, math.inf]]


def test_only_nonzero_values_are_multiplied_if_they_are_few():
    others = torch.arange(8.0).view(2, 4)
    few, many = torch.tensor([0.0, 5.0, 0.0, 0.0]), torch.tensor([0.0, 5.0, 1.0, 0.0])
    assert [x.tolist() for x in where_nonzero(others, few)] == [[[1.0], [5.0]], [5.0]]
    assert all(x is y for x, y in zip(where_nonzero(others, many), (others, many), strict=True))
