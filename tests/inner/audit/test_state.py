"""Which states of another peer's optimizer are read."""

import pytest
import torch

from outerloop.inner.audit.state import tensors_of, unpack, with_zeros_for_missing_states
from outerloop.state import canonical


def optimizer_after(*used):
    """AdamW of two experts, of which each step uses one."""
    experts = [torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)]
    optimizer = torch.optim.AdamW([p for expert in experts for p in expert.parameters()])
    for number in used:
        optimizer.zero_grad()
        experts[number](torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return optimizer


def tree_of(optimizer):
    return {"updates": torch.tensor(1), "optimizer": tensors_of(optimizer.state_dict())}


@pytest.mark.parametrize("own", [(0,), (0, 1)])
@pytest.mark.parametrize("sent", [(), (0,), (1,), (1, 0)])
def test_peers_may_have_used_different_parameters(own, sent):
    optimizer, received = optimizer_after(*own), tree_of(optimizer_after(*sent))
    allowed = tree_of(optimizer)
    allowed["optimizer"] = with_zeros_for_missing_states(optimizer, allowed["optimizer"])
    assert len(allowed["optimizer"]["state"]) == 4
    tree = unpack(canonical.pack(received), allowed)
    assert set(tree["optimizer"]["state"]) == {2 * number + i for number in sent for i in (0, 1)}


@pytest.mark.parametrize(
    "change",
    [
        lambda states: states[0].pop("step"),
        lambda states: states[0].update(exp_avg=torch.zeros(2, 3)),
        lambda states: states.update({4: {key: x.clone() for key, x in states[0].items()}}),
    ],
)
def test_a_state_that_no_parameter_can_have_is_refused(change):
    own = tree_of(optimizer_after(0, 1))
    received = tree_of(optimizer_after(0, 1))
    change(received["optimizer"]["state"])
    with pytest.raises(ValueError, match="names, shapes or dtypes of the tensors"):
        unpack(canonical.pack(received), own)
