"""Training does not depend on torch's default dtype, which a program may set for its own tensors."""

from collections.abc import Callable, Iterator

import pytest
import torch

import outerloop
from outerloop.methods.exact_adamw import adamw
from tests.support import toy

CASES = {
    "diloco": ["diloco"],
    "sparseloco": ["sparseloco", "compress.below=1"],
    "outerloop": ["outerloop", "compress.below=1"],
    "outerloop_v1": ["outerloop_v1", "compress.below=1"],
    "loco": ["loco"],
    "demo": ["demo", "inner.lr=0.1", "compress.below=1"],
    "fp4": ["diloco", "compress=fp4"],
    "PowerSGD": ["sparseloco", "compress=powersgd", "compress.rank=1"],
    "random values": ["sparseloco", "compress=randomk", "compress.chunk=16", "compress.k=2"],
    "threshold": ["sparseloco", "compress=threshold", "compress.below=1"],
}


@pytest.fixture
def set_default() -> Iterator[Callable[[torch.dtype], None]]:
    """Set torch's default dtype until the test ends."""
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


def slow_hash(recipe, *options, before_start=lambda: None):
    """The hash of the slow weights after three rounds of a float32 model. `before_start` is called once it exists."""
    model, batches, landed = toy.model(), [toy.batch(0, step) for step in range(3)], []
    before_start()
    outer = outerloop.from_recipe(recipe, model, *options, sync_every=1, exchange=toy.alone())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with outerloop.attach(optimizer, outer, on_round=landed.append):
        for x, y in batches:
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
    assert landed and not any(report.failed for report in landed), landed
    return outer.slow_hash


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_the_default_dtype_changes_no_bit_of_the_slow_weights(case, dtype, set_default):
    plain = slow_hash(*CASES[case])
    assert slow_hash(*CASES[case], before_start=lambda: set_default(dtype)) == plain


def test_adamw_counts_its_steps_exactly(set_default):
    """bfloat16 has no whole number between 256 and 258."""
    set_default(torch.bfloat16)
    x, state = torch.zeros(1, dtype=torch.float32), {}
    group = {"betas": (0.9, 0.99), "lr": 0.1, "eps": 1e-8, "weight_decay": 0.0}
    for _ in range(300):
        adamw(x, torch.ones_like(x), state, group)
    assert int(state["step"]) == 300
