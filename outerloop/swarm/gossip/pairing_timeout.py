"""Timeout of a ready peer that waits for a partner: a fraction of its inner time, so that idle time is bounded.

    timeout = min(max(fraction · median of the last inner times, min_s), max_s)

The inner time is the duration of one round's inner steps. The median is used because an evaluation or a checkpoint
occasionally makes one inner time much longer.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from outerloop.types import UserError

INNER_TIMES = 5


class PairingTimeout:
    """Computes the pairing timeout from the last INNER_TIMES inner times, all in seconds.

    Raises:
        UserError: if the fraction is negative, or not 0 < min_s <= max_s.
    """

    def __init__(self, fraction: float, *, min_s: float, max_s: float) -> None:
        if fraction < 0:
            raise UserError(f"exchange.patience={fraction} must be 0 or more: set exchange.patience=0.25")
        if not 0 < min_s <= max_s:
            raise UserError(
                f"exchange.least_patience_s={min_s} must be above 0 and at most exchange.most_patience_s={max_s}:"
                f" set exchange.least_patience_s={max_s}"
            )
        self._fraction, self._min_s, self._max_s = fraction, min_s, max_s
        self._inner_s: deque[float] = deque(maxlen=INNER_TIMES)

    def timeout_s(self, inner_s: float) -> float:
        """Return the number of seconds to wait for a partner after inner steps that took `inner_s` seconds."""
        self._inner_s.append(inner_s)
        return min(max(self._fraction * median(self._inner_s), self._min_s), self._max_s)
