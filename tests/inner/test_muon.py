"""Muon with AdamW: which optimizer takes which parameter."""

import torch

from outerloop.inner.muon import MuonWithAdamW

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
    assert torch.equal(again.parts[0].state_dict()["state"][0]["momentum_buffer"],
                       muon.state_dict()["state"][0]["momentum_buffer"])  # fmt: skip


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
