"""What is said of memory before training, against the tensors that are there afterwards."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import outerloop
from outerloop.core.memory_usage import estimate, measure
from outerloop.feedback.ef import ErrorFeedback
from outerloop.inner.muon import MuonWithAdamW
from tests.support import toy


def net():
    """Matrices, vectors, buffers, a frozen layer."""
    torch.manual_seed(0)
    layers = [nn.Linear(128, 256), nn.BatchNorm1d(256), nn.Linear(256, 128), nn.Linear(128, 8)]
    layers[-1].requires_grad_(False)
    return nn.Sequential(*layers)


def muon(model):
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    settings = {"adamw_lr": 1e-3, "momentum": 0.9, "betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}
    return MuonWithAdamW(named, lr=1e-3, **settings)


class Damped(torch.optim.SGD):
    """It keeps something of its own beside its state."""

    def __init__(self, params):
        super().__init__(params, lr=0.1, momentum=0.9)
        self.damping = 0.5

    def step(self, closure=None):
        for group in self.param_groups:
            group["dampening"] = self.damping
        return super().step(closure)


INNER = {
    "damped": lambda model: Damped(model.parameters()),
    "adamw": lambda model: torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "muon": muon,
}


@pytest.mark.parametrize(
    ("recipe", "inner", "options"),
    [
        ("diloco", "adamw", []),
        ("diloco", "sgd", ["state_dtype=float64"]),
        ("diloco", "damped", []),
        ("sparseloco", "muon", ["feedback.bits=8"]),
        ("loco", "adamw", []),
        ("noloco", "adamw", []),
        ("outerloop", "muon", []),
        ("outerloop", "muon", ["schedule.delay=1"]),
        ("sparseloco", "adamw", ["schedule.delay=1", "merge_local=carry"]),
    ],
)
def test_every_part_is_as_large_as_it_was_said_to_be(recipe, inner, options):
    exchange = toy.alone()
    exchange.info = replace(exchange.info, agrees=recipe != "noloco")
    model = net()
    outer = outerloop.from_recipe(recipe, model, "schedule.sync_every=2", *options, exchange=exchange)
    optimizer = INNER[inner](model)
    outerloop.attach(optimizer, outer)
    said = estimate(outer, optimizer)
    assert outer.inner_step == 0 and measure(outer, optimizer).parts["inner optimizer"] == 0
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 128)).square().mean().backward()
        optimizer.step()
    real = measure(outer, optimizer)
    assert real.parts["residual"] > 0 or recipe in ("diloco", "noloco", "outerloop")
    assert (real.parts["spare"] > 0) == ("schedule.delay=1" in options)
    for part, size in real.parts.items():
        assert math.isclose(said.parts[part], size, rel_tol=0.1, abs_tol=64), part
    assert math.isclose(said.total, real.total, rel_tol=0.1)


def test_parts_by_hand():
    """One matrix of 64 x 64 in float32: 16,384 bytes, Adam holds twice that and a step; Nesterov once."""
    model = nn.Linear(64, 64, bias=False)
    outer = outerloop.from_recipe("diloco", model, exchange=toy.alone())
    said = estimate(outer, torch.optim.Adam(model.parameters()))
    one = 16384
    expected = {"parameters": one, "gradients": one, "inner optimizer": 2 * one + 4, "slow": one}
    assert said.parts == expected | {"residual": 0, "momentum": one, "spare": 0, "buffers": 0}
    assert str(said).startswith("memory of this rank 0.1 MB: parameters 0.0, gradients 0.0, inner optimizer 0.0")


def test_the_trial_step_of_the_feedback_is_taken_only_when_its_share_is_asked_for():
    kept = []

    class Noting(ErrorFeedback):
        def keep(self, name, x, sent):
            kept.append(name)
            super().keep(name, x, sent)

    outer = toy.outer(toy.model(), toy.alone(), feedback=Noting(beta=0.9), h=1)
    assert not kept and outer.trial_state.residual_share == 1.0 and kept == ["trial"]
    assert not outer.after_inner_step(1)[0].failed and set(kept) == {"trial", *outer.slow}
    assert outer.trial_state.residual_share == 1.0, "of a residual of its own, whatever the loop holds"
