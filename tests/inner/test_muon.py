"""Muon with AdamW: which optimizer takes which parameter."""

import torch

from outerloop.inner.muon import MuonWithAdamW


def test_muon_takes_the_matrices_of_the_layers_and_adamw_the_rest():
    net = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(5, 8), "layers": torch.nn.ModuleList([torch.nn.Linear(8, 8)])}
    )
    options = {"lr": 0.01, "adamw_lr": 0.02, "momentum": 0.9, "betas": (0.9, 0.95), "weight_decay": 0.0, "fused": True}
    optimizer = MuonWithAdamW(list(net.named_parameters()), **options)
    muon, adamw = optimizer.parts
    assert [p.shape for p in muon.param_groups[0]["params"]] == [(8, 8)]
    assert [p.shape for p in adamw.param_groups[0]["params"]] == [(5, 8), (8,)]
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.02]
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    before = [p.detach().clone() for p in net.parameters()]
    optimizer.step()
    assert all(not torch.equal(p, x) for p, x in zip(net.parameters(), before, strict=True))
    again = MuonWithAdamW(list(net.named_parameters()), **options)
    again.load_state_dict(optimizer.state_dict())
    assert torch.equal(again.parts[0].state_dict()["state"][0]["momentum_buffer"],
                       muon.state_dict()["state"][0]["momentum_buffer"])  # fmt: skip
