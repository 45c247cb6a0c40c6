"""Streaming DiLoCo (arXiv 2501.18512): send each of P model fragments every H inner steps, at different offsets.

    fragment p launches after steps  r H + ⌊(p + 1) H / P⌋,  r = 0, 1, ...,  and lands τ steps later

The peak bandwidth decreases by a factor of P, and the exchange overlaps with τ inner steps. Layers are strided: layer l
(l = 0, 1, ... in the order of the layer numbers, which may have gaps, as in nn.Sequential) belongs to fragment l mod P,
so that every fragment has early and late layers. Other parameters belong to the first fragment if they precede the
first layer, and to the last fragment otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from outerloop.types import DueRounds, Round, UserError


class Streaming:
    """A schedule with P fragments, each of which consists of every P-th layer.

    Args:
        sync_every: H, inner steps between two rounds of one fragment. Paper: 30 .. 100.
        fragments: P, 1 .. number of layers. Paper: 3 layers per fragment.
        delay: τ, inner steps between launch and landing, below ⌊H / P⌋.
        early: land a round as soon as its payloads have arrived, after τ steps at the latest; requires τ > 0.

    Raises:
        UserError: if a setting is out of range.
    """

    step_s = 0.0

    def __init__(self, *, sync_every: int, fragments: int, delay: int, early: bool = False) -> None:
        if sync_every < 1:
            raise UserError(f"schedule.sync_every={sync_every} must be at least 1: set schedule.sync_every=30")
        if not 1 <= fragments <= sync_every:
            raise UserError(
                f"schedule.fragments={fragments} must be 1 .. sync_every={sync_every}:"
                f" set schedule.fragments={min(2, sync_every)}"
            )
        if not 0 <= delay < sync_every // fragments:
            raise UserError(
                f"schedule.delay={delay} must be 0 or more and below sync_every // fragments ="
                f" {sync_every // fragments}: set schedule.delay=0"
            )
        if early and not delay:
            fits = "schedule.delay=1, or " if sync_every // fragments > 1 else ""
            raise UserError(
                f"schedule.early=true requires schedule.delay above 0, but it is 0: set {fits}schedule.early=false"
            )
        self.sync_every, self.fragments, self.delay, self.early = sync_every, fragments, delay, early
        self.offsets = [(p + 1) * sync_every // fragments for p in range(fragments)]

    def due(self, inner_step: int) -> DueRounds:
        """Return the rounds that launch and land after this step. Steps are counted from 1."""
        return DueRounds(launch=self.rounds_at(inner_step), land=self.rounds_at(inner_step - self.delay))

    def rounds_at(self, step: int) -> tuple[Round, ...]:
        """Return the rounds that launch after this step."""
        return tuple(
            Round(number=(step - offset) // self.sync_every, fragment=p)
            for p, offset in enumerate(self.offsets)
            if step >= offset and (step - offset) % self.sync_every == 0
        )

    def fragment(self, index: int, names: Sequence[str]) -> list[str]:
        """Return the parameters of fragment `index`, in model order. Raises UserError if there are too few layers."""
        layers = len(ranks_of(names))
        if self.fragments > max(1, layers):
            raise UserError(
                f"schedule.fragments={self.fragments} is more than the model's {layers} layers:"
                f" set schedule.fragments={max(1, layers)}"
            )
        homes = strided(names, self.fragments)
        return [name for name in names if homes[name] == index]

    def inner_steps(self, rounds: int) -> int:
        """Return the number of inner steps until the last of `rounds` rounds lands: rounds · H + τ."""
        return rounds * self.sync_every + self.delay


def strided(names: Sequence[str], fragments: int) -> dict[str, int]:
    """Return the index of the fragment that each parameter belongs to, by parameter name."""
    homes: dict[str, int] = {}
    ranks, seen_a_layer = ranks_of(names), False
    for name in names:
        layer = layer_of(name)
        seen_a_layer = seen_a_layer or layer is not None
        homes[name] = ranks[layer] % fragments if layer is not None else (fragments - 1 if seen_a_layer else 0)
    return homes


def ranks_of(names: Sequence[str]) -> dict[int, int]:
    """Return a map from each layer number in these names to its rank in ascending order, as in {0: 0, 2: 1, 4: 2}."""
    numbers = {layer_of(name) for name in names} - {None}
    return {number: rank for rank, number in enumerate(sorted(cast(set[int], numbers)))}


def layer_of(name: str) -> int | None:
    """Return the layer number in a parameter's name, or None: "model.layers.3.mlp.weight" -> 3."""
    found = re.search(r"(?:^|\.)(\d+)\.", name)
    return int(found[1]) if found else None
