"""The state of a model and its inner optimizer in a sharded checkpoint, of one process."""

import copy

import pytest
import torch

import outerloop
from outerloop.core.state import distributed_checkpoint
from outerloop.inner.muon import MuonWithAdamW
from tests.support import toy
from tests.support.tensors import same_tensors


class WithUnused(torch.nn.Module):
    """A layer, and one that takes no part in the loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
        self.unused = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.layers[0](x)


def adamw(net):
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.01)


def muon(net):
    settings = {"momentum": 0.9, "betas": (0.9, 0.95), "weight_decay": 0.0, "fused": False}
    return MuonWithAdamW(net.named_parameters(), lr=0.01, adamw_lr=0.01, **settings)


def step(net, optimizer):
    net(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("make", [sgd, adamw])
def test_saving_and_loading_count_no_inner_steps(make, tmp_path):
    """torch steps an optimizer whose state is empty, to initialize the state."""
    net = WithUnused()
    net.unused.requires_grad_(False)
    optimizer, outer = make(net), outerloop.from_recipe("diloco", net, "schedule.sync_every=9", exchange=toy.alone())
    with outerloop.attach(optimizer, outer):
        distributed_checkpoint.save(tmp_path, optimizer, outer)
        assert outer.inner_step == 0
        distributed_checkpoint.load_inner(tmp_path, optimizer, net)
        assert outer.inner_step == 0
        step(net, optimizer)
    assert outer.inner_step == 1


def test_saving_before_the_first_step_leaves_the_optimizer_new(tmp_path):
    one, other = WithUnused(), WithUnused()
    optimizers = adamw(one), adamw(other)
    distributed_checkpoint.save_inner(tmp_path, optimizers[0], one)
    assert not optimizers[0].state
    distributed_checkpoint.load_inner(tmp_path, optimizers[0], one)
    assert not optimizers[0].state
    for net, optimizer in zip((one, other), optimizers, strict=True):
        step(net, optimizer)
    assert same_tensors(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("make", [adamw, muon])
def test_a_parameter_without_a_gradient_so_far_has_no_state_after_loading(make, tmp_path):
    net = WithUnused()
    optimizer = make(net)
    step(net, optimizer)
    distributed_checkpoint.save_inner(tmp_path, optimizer, net)
    again = WithUnused()
    loaded = make(again)
    distributed_checkpoint.load_inner(tmp_path, loaded, again)
    assert set(loaded.state) == set(again.layers.parameters())
    for p, q in zip(net.layers.parameters(), again.layers.parameters(), strict=True):
        assert same_tensors(optimizer.state[p], loaded.state[q])
    before = copy.deepcopy(net.state_dict())
    for one, with_state in ((net, optimizer), (again, loaded)):
        step(one, with_state)
    assert same_tensors(net.state_dict(), again.state_dict()) and not same_tensors(net.state_dict(), before)
