"""An allowance, also known as a token bucket: an amount to spend at once, refilled at a steady rate."""

from __future__ import annotations

import asyncio


class Allowance:
    """`most` at once, refilled by `per_s` every second."""

    def __init__(self, most: float, *, per_s: float) -> None:
        self._most = most
        self._per_s = per_s
        self._left = float(most)
        self._at_s: float | None = None

    def left(self) -> float:
        """Return what may be spent now; negative when more was charged than was left."""
        now_s = asyncio.get_running_loop().time()
        if self._at_s is not None:
            self._left = min(self._most, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        return self._left

    def grant(self, wanted: int) -> int:
        """Spend all that is wanted and return it; return 0 and spend nothing when less is left."""
        if wanted > self.left():
            return 0
        self._left -= wanted
        return wanted

    def charge(self, spent: int) -> None:
        """Subtract what was spent without asking; nothing is granted until that is refilled."""
        self._left = self.left() - spent
