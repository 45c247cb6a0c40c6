"""Apply eager updates (arXiv 2502.12996): when a round lands late, replace this peer's contribution by its current one.

at the first launch, before any round has landed:   ḡ = Δ_now / P
at a landing:                                       ḡ + (Δ_now − Δ_then) / P
"""

from __future__ import annotations

from dataclasses import replace

from outerloop.core.pipeline import AggregatedRound
from outerloop.types import Tensors


def first_mean(now: Tensors, peers: int) -> Tensors:
    """Return Δ_now / P."""
    return {name: x / peers for name, x in now.items()}


def refreshed(combined: AggregatedRound, *, now: Tensors, then: Tensors) -> AggregatedRound:
    """Return the aggregate with this peer's contribution replaced by its current one."""
    peers = len(combined.messages)
    return replace(combined, mean={name: x + (now[name] - then[name]) / peers for name, x in combined.mean.items()})
