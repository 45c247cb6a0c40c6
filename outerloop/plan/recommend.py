"""Recommend one of several methods, based on a budget of time and traffic and on losses measured in this repository.

Among the methods that stay within the budget, the method with the lowest validation loss in scripts/results is
recommended. Without a budget, only the methods within 5 % of the speed of the fastest one are considered. The losses
are in nats per byte, after equal numbers of tokens, with four workers and 1.03M parameters. All learning rates were
tuned. The losses are used to order the methods, and do not predict those of a large model. The loss of an H without a
measurement is that of the nearest measured H (by ratio). More than a factor of 2 outside the measured range, the loss
is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outerloop.plan.forecast import Forecast

CLOSE_FACTOR = 1.05
RANGE_FACTOR = 2
"""Factor by which H may be outside a recipe's measured range."""
ROUNDING = 1e-6
"""Fraction of a round that rounding errors of float64 stay below."""
LOSSES = {
    "muloco": {15: 1.431, 30: 1.475, 100: 1.606},
    "outerloop": {15: 1.445, 30: 1.514, 100: 1.734},
    "outerloop_v1": {15: 1.557, 30: 1.659, 100: 2.378},
    "ddp": {1: 1.595},
    "demo": {1: 1.806},
    "sparseloco": {15: 1.816, 30: 1.949, 100: 2.309},
    "streaming_diloco": {15: 1.872, 30: 1.918, 100: 1.986},
    "loco": {15: 1.873, 30: 1.915, 100: 1.960},
    "diloco_int8": {15: 1.879, 30: 1.916, 100: 1.961},
    "diloco": {15: 1.862, 30: 1.904, 100: 1.953},
    "localsgd": {15: 1.914, 30: 2.002, 100: 2.112},
    "noloco": {15: 1.960, 30: 2.051, 100: 2.283},
    "decoupled_momentum": {15: 2.134, 30: 2.246, 100: 2.625},
}
"""Recipe -> H (inner steps per round) -> loss after 600 steps, mean of seeds 0 and 1.

The losses of outerloop, outerloop_v1, muloco, diloco, sparseloco and ddp (with AdamW) come from scripts/results/table
(learning rate, Muon's momentum, weight decay and the outer optimizer were tuned at H 15). All others come from the
first table of scripts/results/recipes/COMMAND.md (only the learning rate was tuned); those with DiLoCo's outer
optimizer have outer momentum 0.6.
"""


def nearest_measured(name: str, sync_every: int) -> int | None:
    """Return the measured H closest to `sync_every` (by ratio), or None if `sync_every` is too far from all of them."""
    measured = LOSSES.get(name)
    if measured is None or not min(measured) / RANGE_FACTOR <= sync_every <= max(measured) * RANGE_FACTOR:
        return None
    return min(measured, key=lambda h: abs(math.log(h / sync_every)))


def measured_loss(name: str, sync_every: int) -> float:
    """Return the loss at the measured H closest to `sync_every`, or infinity if no measured H is close enough."""
    nearest = nearest_measured(name, sync_every)
    return math.inf if nearest is None else LOSSES[name][nearest]


@dataclass(frozen=True)
class Budget:
    """The limits within which a method must train. Infinity: no limit.

    hours        duration of the run, in hours
    sent_bytes   payload bytes that one peer sends in the whole run, counting every copy
    """

    hours: float = math.inf
    sent_bytes: float = math.inf

    @property
    def is_set(self) -> bool:
        """Return whether there is any limit."""
        return min(self.hours, self.sent_bytes) < math.inf

    def allows(self, row: Forecast, run_length: float) -> bool:
        """Return whether a forecast stays within the limits.

        `run_length`: all tokens of the run, divided by the tokens of one inner step of one peer.
        """
        hours, sent_bytes = consumption(row, run_length)
        return hours <= self.hours and sent_bytes <= self.sent_bytes


def recommend(rows: Sequence[Forecast], budget: Budget = Budget(), run_length: float = 0.0) -> tuple[Forecast, str]:
    """Return the recommended forecast and a one-line reason.

    `run_length`: all tokens of the run, divided by the tokens of one inner step of one peer.
    """
    fastest = max(rows, key=lambda row: row.tokens_per_s(1.0))
    if len(rows) == 1:
        return fastest, "the only method"
    if not budget.is_set:
        return among_close(rows, fastest)
    within = [row for row in rows if budget.allows(row, run_length)]
    if not within:
        return fastest, f"the fastest; none of the {len(rows)} rows is within the budget"
    best = min(within, key=rank)
    if loss_of(best) == math.inf:
        return best, f"the fastest of the {len(within)} rows within the budget; no losses were measured for them"
    return best, f"{lowest_loss(best)} of the {len(within)} rows within the budget{without_losses(within)}"


def consumption(row: Forecast, run_length: float) -> tuple[float, float]:
    """Return the hours of the run, and the payload bytes that one peer sends in it. Only whole rounds send bytes.

    `run_length`: all tokens of the run, divided by the tokens of one inner step of one peer.
    """
    duration_s = run_length / row.tokens_per_s(1.0)
    rounds = math.floor(duration_s / row.rate.round_s + ROUNDING)
    return duration_s / 3600, row.sent_bytes_per_round * rounds


def among_close(rows: Sequence[Forecast], fastest: Forecast) -> tuple[Forecast, str]:
    """Return the forecast with the lowest loss among those within 5 % of the fastest, and a one-line reason."""
    close = [row for row in rows if CLOSE_FACTOR * row.tokens_per_s(1.0) >= fastest.tokens_per_s(1.0)]
    best = min(close, key=rank)
    if len(close) == 1:
        next_fastest = max(row.tokens_per_s(1.0) for row in rows if row is not best)
        return best, f"{best.tokens_per_s(1.0) / next_fastest:.3g} times as fast as the next method"
    if loss_of(best) == math.inf:
        return best, "the fastest; no losses were measured for the methods within 5 % of it"
    others = "; ".join(row.method.label for row in close if row is not best)
    return best, f"{lowest_loss(best)} of those within 5 % of the fastest{without_losses(close)}; others: {others}"


def rank(row: Forecast) -> tuple[float, float, float]:
    """Return the key by which forecasts are ordered, best first: loss, distance of H from its measurement, speed."""
    name, sync_every = row.method.name, row.method.sync_every
    nearest = nearest_measured(name, sync_every) or sync_every
    return measured_loss(name, sync_every), abs(math.log(nearest / sync_every)), -row.tokens_per_s(1.0)


def loss_of(row: Forecast) -> float:
    """Return the measured loss of a forecast's method, or infinity if there is no measurement."""
    return measured_loss(row.method.name, row.method.sync_every)


def lowest_loss(best: Forecast) -> str:
    """Return the words for the lowest measured loss. They name the H of the measurement if it is not the method's."""
    nearest = nearest_measured(best.method.name, best.method.sync_every)
    at = "" if nearest == best.method.sync_every else f", at H {nearest}"
    return f"lowest measured loss (scripts/results{at})"


def without_losses(rows: Sequence[Forecast]) -> str:
    """Return a clause that states how many forecasts have no measured loss, or "" if all of them have one."""
    count = sum(loss_of(row) == math.inf for row in rows)
    return f"; no losses were measured for {count} of them" if count else ""
