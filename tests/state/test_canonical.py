"""Trees of tensors and values as bytes: back as they were, the same bytes for the same tree, nothing else accepted."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.state import canonical

NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
TENSORS = st.builds(
    lambda shape, dtype: torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]),
)
KEYS = st.one_of(st.text(max_size=5), st.integers())
TREES = st.recursive(
    st.one_of(NUMBERS, TENSORS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)


def equal(a, b):
    """With types: 1 is not 1.0 here, and no tensor equals one of another dtype."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_trees_come_back(tree):
    assert equal(canonical.unpack(canonical.pack(tree)), tree)


def test_the_order_of_keys_and_the_layout_of_tensors_do_not_show():
    x = torch.randn(4, 6)
    one = {"slow": {"a": x, "b": x.t().contiguous().t()}, "rounds": {1: 2, 0: 3}}
    other = {"rounds": {0: 3, 1: 2}, "slow": {"b": x.clone(), "a": x}}
    assert canonical.pack(one) == canonical.pack(other)
    other["slow"]["a"] = x + 1
    assert canonical.pack(one) != canonical.pack(other)


def test_an_optimizer_goes_on_as_if_nothing_had_been():
    def steps(optimizer, x, count):
        for _ in range(count):
            x.grad = x.detach() + 1
            optimizer.step()

    x = torch.ones(3)
    optimizer = torch.optim.SGD([x], lr=0.1, momentum=0.9, nesterov=True)
    steps(optimizer, x, 3)
    y = x.clone()
    late = torch.optim.SGD([y], lr=0.5)
    late.load_state_dict(canonical.unpack(canonical.pack(optimizer.state_dict())))
    steps(optimizer, x, 2)
    steps(late, y, 2)
    assert torch.equal(x, y)


@pytest.mark.parametrize("tree", [{"a": object()}, {(1, 2): 3}, [{1.5: 2}]], ids=["object", "tuple", "float"])
def test_unsupported_values_are_refused(tree):
    with pytest.raises(TypeError):
        canonical.pack(tree)


@pytest.mark.parametrize("step", ["load", "json.loads"])
def test_a_lack_of_memory_is_not_blamed_on_the_bytes(step, monkeypatch):
    def fail(data):
        raise MemoryError

    content = canonical.pack({"w": torch.zeros(1)})
    monkeypatch.setattr(f"outerloop.state.canonical.{step}", fail)
    with pytest.raises(MemoryError):
        canonical.unpack(content)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_mutated_bytes_are_refused_or_are_some_tree(data):
    whole = canonical.pack({"slow": {"w": torch.randn(5)}, "rounds": {0: 1}})
    at = data.draw(st.integers(0, len(whole) - 1))
    broken = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    for content in (broken, whole[:at], whole + broken[:at]):
        try:
            canonical.unpack(content)
        except ValueError:
            continue
