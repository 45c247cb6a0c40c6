"""Recommend one of several methods, based on forecast speed and on losses measured in this repository.

Among the methods within 5 % of the fastest one's speed, the method with the lowest validation loss in
scripts/results is recommended. The losses are in nats per byte, after equal numbers of tokens, with four workers and
1.03M parameters. All learning rates were tuned in the same way, except those of both versions of the recipe outerloop.
The losses do not predict those of a large model, so they only decide between methods of similar speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from outerloop.plan.forecast import Forecast

CLOSE_FACTOR = 1.05
LOSSES = {
    "muloco": {15: 1.486, 30: 1.541, 100: 1.697},
    "outerloop": {15: 1.491, 30: 1.580, 100: 1.974},
    "ddp": {1: 1.621},
    "outerloop_v1": {15: 1.673, 30: 1.766, 100: 2.489},
    "demo": {1: 1.806},
    "sparseloco": {15: 1.821, 30: 1.949, 100: 2.307},
    "streaming_diloco": {15: 1.872, 30: 1.918, 100: 1.986},
    "loco": {15: 1.873, 30: 1.915, 100: 1.960},
    "diloco_int8": {15: 1.879, 30: 1.916, 100: 1.961},
    "diloco": {15: 1.880, 30: 1.915, 100: 1.961},
    "localsgd": {15: 1.914, 30: 2.002, 100: 2.112},
    "noloco": {15: 1.960, 30: 2.051, 100: 2.283},
    "decoupled_momentum": {15: 2.134, 30: 2.246, 100: 2.625},
}
"""Recipe -> H (inner steps per round) -> loss after 600 steps, mean of seeds 0 and 1.

Those of outerloop are in scripts/results/table, all others in the first table of scripts/results/recipes/COMMAND.md.
DiLoCo was measured with outer momentum 0.6.
"""


def measured_loss(name: str, sync_every: int, losses: Mapping[str, Mapping[int, float]] = LOSSES) -> float:
    """Return the loss at the measured H closest to `sync_every` (by ratio), or infinity if there is no measurement."""
    measured = losses.get(name, {})
    nearest = min(measured, key=lambda h: abs(math.log(h / sync_every)), default=None)
    return math.inf if nearest is None else measured[nearest]


def recommend(rows: Sequence[Forecast]) -> tuple[Forecast, str]:
    """Return the recommended forecast and a one-line reason."""
    fastest = min(rows, key=lambda row: 1 / row.tokens_per_s(1.0))
    close = [row for row in rows if CLOSE_FACTOR * row.tokens_per_s(1.0) >= fastest.tokens_per_s(1.0)]
    best = min(close, key=lambda row: measured_loss(row.method.name, row.method.sync_every))
    if len(rows) == 1:
        return best, "the only method"
    if len(close) == 1:
        next_fastest = max(row.tokens_per_s(1.0) for row in rows if row is not best)
        return best, f"{best.tokens_per_s(1.0) / next_fastest:.3g} times as fast as the next method"
    if measured_loss(best.method.name, best.method.sync_every) == math.inf:
        return fastest, "the fastest; no losses were measured for the methods within 5 % of it"
    others = ", ".join(row.method.name for row in close if row is not best)
    return best, f"lowest measured loss (scripts/results) of those within 5 % of the fastest; others: {others}"
