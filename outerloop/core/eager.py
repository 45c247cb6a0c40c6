"""Eager updates (arXiv 2502.12996): of a round that lands late, this peer's own part is replaced by what it has now.

at the first launch, when nothing has come back yet:   ḡ = Δ_now / P
at a landing:                                          ḡ + (Δ_now − Δ_then) / P
"""

from __future__ import annotations

from dataclasses import replace

from outerloop.core.pipeline import AggregatedRound
from outerloop.types import Tensors


def first_mean(now: Tensors, peers: int) -> Tensors:
    """Δ_now / P."""
    return {name: x / peers for name, x in now.items()}


def refreshed(combined: AggregatedRound, *, now: Tensors, then: Tensors) -> AggregatedRound:
    """The aggregate with this peer's part as it is now."""
    peers = len(combined.messages)
    return replace(combined, mean={name: x + (now[name] - then[name]) / peers for name, x in combined.mean.items()})
