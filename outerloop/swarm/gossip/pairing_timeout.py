"""How long a ready peer waits for a partner: a share of what it takes for its own inner steps, so idling stays bounded.

    patience = fraction · median of the last inner times,  at least `least_s`, at most `most_s`

The median, because now and then an evaluation or a checkpoint stretches one.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from outerloop.types import UserError

INNER_TIMES = 5


class PairingTimeout:
    """Seconds of patience from seconds of work.

    Raises:
        UserError: for a negative fraction, or limits out of order.
    """

    def __init__(self, fraction: float, *, least_s: float, most_s: float) -> None:
        if fraction < 0:
            raise UserError(f"exchange.patience={fraction} must be 0 or more: type exchange.patience=0.25")
        if not 0 < least_s <= most_s:
            raise UserError(
                f"exchange.least_patience_s={least_s} must be above 0 and at most most_patience_s={most_s}:"
                f" type exchange.least_patience_s={most_s}"
            )
        self._fraction, self._least_s, self._most_s = fraction, least_s, most_s
        self._inner_s: deque[float] = deque(maxlen=INNER_TIMES)

    def after(self, inner_s: float) -> float:
        """How long to wait after inner steps that took so long."""
        self._inner_s.append(inner_s)
        return min(max(self._fraction * median(self._inner_s), self._least_s), self._most_s)
