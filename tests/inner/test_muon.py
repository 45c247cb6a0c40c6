"""Muon with AdamW: which optimizer takes which parameter."""

import copy
import pickle

import pytest
import torch

from outerloop.inner.muon import MuonWithAdamW
from outerloop.types import UserError

OPTIONS = {"lr": 0.01, "adamw_lr": 0.02, "momentum": 0.9, "betas": (0.9, 0.95), "weight_decay": 0.0, "fused": True}


def test_muon_takes_the_matrices_of_the_layers_and_adamw_the_rest():
    net = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(5, 8), "layers": torch.nn.ModuleList([torch.nn.Linear(8, 8)])}
    )
    optimizer = MuonWithAdamW(list(net.named_parameters()), **OPTIONS)
    muon, adamw = optimizer.parts
    assert [p.shape for p in muon.param_groups[0]["params"]] == [(8, 8)]
    assert [p.shape for p in adamw.param_groups[0]["params"]] == [(5, 8), (8,)]
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.02]
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    before = [p.detach().clone() for p in net.parameters()]
    optimizer.step()
    assert all(not torch.equal(p, x) for p, x in zip(net.parameters(), before, strict=True))
    again = MuonWithAdamW(list(net.named_parameters()), **OPTIONS)
    again.load_state_dict(optimizer.state_dict())
    for part, p in ((muon, net["layers"][0].weight), (adamw, net["embed"].weight)):
        assert part.state[p] is optimizer.state[p]
        assert all(torch.equal(x, optimizer.state[p][key]) for key, x in again.state[p].items())


def stepped(net):
    """The optimizer of a net, after a step."""
    optimizer = MuonWithAdamW(list(net.named_parameters()), **OPTIONS)
    net(torch.ones(2, 8)).square().mean().backward()
    optimizer.step()
    return optimizer


def test_the_state_that_an_earlier_version_saved_is_loaded():
    """It has one state for each of the two optimizers. Of the two parameters of the net, the first is Muon's."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 8))
    saved = stepped(net).state_dict()
    (muon, adamw), groups = saved["state"].values(), saved["param_groups"]
    earlier = [
        {"state": {0: x}, "param_groups": [g | {"params": [0]}]} for x, g in zip((muon, adamw), groups, strict=True)
    ]
    again = MuonWithAdamW(list(net.named_parameters()), **OPTIONS)
    again.load_state_dict({"parts": earlier})
    assert again.state_dict()["param_groups"] == groups
    assert torch.equal(again.state[net[0].weight]["momentum_buffer"], muon["momentum_buffer"])
    assert torch.equal(again.state[net[0].bias]["exp_avg"], adamw["exp_avg"])
    assert all(part.state is again.state for part in again.parts)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_trains_like_the_original(copied):
    net = torch.nn.Sequential(torch.nn.Linear(8, 8))
    optimizer = stepped(net)
    other, its_optimizer = copied((net, optimizer))
    for one, trained_by in ((net, optimizer), (other, its_optimizer)):
        for group in trained_by.param_groups:
            group["lr"] = 0.5
        for p in one.parameters():
            p.grad = torch.ones_like(p)
        trained_by.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), other.parameters(), strict=True))


def test_another_parameter_group_is_refused():
    optimizer = stepped(torch.nn.Sequential(torch.nn.Linear(8, 8)))
    with pytest.raises(UserError, match="create it with all parameters"):
        optimizer.add_param_group({"params": [torch.zeros(8, 8, requires_grad=True)]})


def test_a_step_computes_the_gradients_with_its_closure_and_returns_the_loss():
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8))
    optimizer = MuonWithAdamW(layers.named_parameters(), **OPTIONS)
    before = [p.detach().clone() for p in layers.parameters()]

    def closure():
        loss = layers(torch.ones(2, 8)).square().mean()
        loss.backward()
        return loss

    expected = layers(torch.ones(2, 8)).square().mean()
    with torch.no_grad():
        assert optimizer.step(closure) == expected
    assert all(not torch.equal(p, x) for p, x in zip(layers.parameters(), before, strict=True))
