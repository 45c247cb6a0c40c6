"""List the cases of bench_table.py: the recipes that it trains, and the values to try when it tunes them."""

from __future__ import annotations

from dataclasses import dataclass

ADAMW, MUON = (2e-3, 5e-4, 1e-3, 4e-3), (4e-3, 2e-3, 3e-3, 6e-3)
MOMENTUM = (0.9, 0.7, 0.8, 0.85, 0.95)
NESTEROV = ((0.7, 0.6), (0.7, 0.9), (0.9, 0.6), (1.0, 0.3))
"""Pairs of outer learning rate and outer momentum. The first pair is used while the inner optimizer is tuned. It does
not have the momentum 0.9 of recipe=diloco, which is meant for H of 100 or more: at H = 15, AdamW and learning rate
1e-3, the loss is 2.15 with 0.9 and 1.81 with 0.6."""

OUTERLOOP = (3e-3, 2e-3, 4e-3, 6e-3), (), (0.85, 0.7, 0.8, 0.9, 0.95), (0.0125, 0.00625, 0.025)
"""Values to try for versions 3 to 5 of recipe=outerloop, in the order of the fields of Case."""


@dataclass(frozen=True)
class Case:
    """A recipe, and the values to try when it is tuned.

    lr: inner learning rates.
    outer: pairs of outer learning rate and momentum; empty if there is no outer optimizer to tune.
    inner_momentum: momenta of Muon; empty for AdamW.
    weight_decay: weight decays of the inner optimizer.
    """

    overrides: tuple[str, ...]
    lr: tuple[float, ...]
    outer: tuple[tuple[float, float], ...] = ()
    inner_momentum: tuple[float, ...] = ()
    weight_decay: tuple[float, ...] = (0.025, 0.1)


CASES = {
    "ddp_adamw": Case(("recipe=localsgd",), ADAMW, weight_decay=(0.1, 0.025, 0.00625, 0.0)),
    "ddp_muon": Case(("recipe=localsgd", "inner=muon"), MUON, (), MOMENTUM, (0.025, 0.0125, 0.1)),
    "ddp_adamw_nesterov": Case(("recipe=diloco",), ADAMW, NESTEROV, weight_decay=(0.1, 0.025)),
    "ddp_muon_nesterov": Case(("recipe=muloco",), MUON, NESTEROV, MOMENTUM, (0.1, 0.025)),
    "diloco": Case(("recipe=diloco",), ADAMW, NESTEROV),
    "muloco": Case(("recipe=muloco",), MUON, NESTEROV, MOMENTUM),
    "sparseloco": Case(("recipe=sparseloco",), ADAMW),
    "outerloop_v1": Case(("recipe=outerloop_v1",), MUON, (), (0.95, 0.7, 0.8, 0.85, 0.9), (0.1, 0.025)),
    "outerloop_v3": Case(
        ("recipe=outerloop", "method.lr_factor.floor=1", "method.optimizer.lr=1", "feedback.beta=0.8"), *OUTERLOOP
    ),
    "outerloop_v4": Case(("recipe=outerloop", "method.lr_factor.floor=1"), *OUTERLOOP),
    "outerloop": Case(("recipe=outerloop",), *OUTERLOOP),
}
