"""How much others can make this peer do: token buckets, one of each remote and one of all strangers together.

    Rate(burst, per_s)    so much at once, and so much a second from then on
    take(remote, amount)  all of it or nothing: whoever is refused has spent nothing

A member answers for itself, with a bucket of its own. Identities cost nothing, so whoever is no member has a bucket of
its own and a part in one that all of them share: what many of them spend is bounded, and is not the members'.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_REMOTES = 2048
"""Buckets that are remembered, twice as many as peers of a run; the one that was used least recently goes first."""


@dataclass(frozen=True)
class Rate:
    """An amount at once, and an amount a second."""

    burst: float
    per_s: float


class Bucket:
    """Tokens of one spender: `burst` at most, full at first."""

    def __init__(self, rate: Rate, now_s: Callable[[], float]) -> None:
        self._rate = rate
        self._now_s = now_s
        self._at_s = now_s()
        self._tokens = rate.burst

    def holds(self, amount: float) -> bool:
        """Return whether it could be taken now."""
        now_s = self._now_s()
        self._tokens = min(self._rate.burst, self._tokens + (now_s - self._at_s) * self._rate.per_s)
        self._at_s = now_s
        return amount <= self._tokens

    def take(self, amount: float) -> None:
        """Take what it holds."""
        self._tokens -= amount


class Budget:
    """The buckets of one thing that costs. `is_member`: by peer id; `each` is for all, `strangers` for the rest.

    Args:
        each: what one remote may spend.
        strangers: what all remotes that are no members may spend together.
    """

    def __init__(
        self,
        each: Rate,
        strangers: Rate,
        *,
        is_member: Callable[[str], bool],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._each = each
        self._is_member = is_member
        self._now_s = now_s
        self._strangers = Bucket(strangers, now_s)
        self._of: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, remote: str, amount: float = 1.0) -> bool:
        """Spend an amount of a remote's. False: it has not got so much, and nothing is spent."""
        buckets = [self._bucket(remote)] if self._is_member(remote) else [self._bucket(remote), self._strangers]
        if not all(bucket.holds(amount) for bucket in buckets):
            return False
        for bucket in buckets:
            bucket.take(amount)
        return True

    def _bucket(self, remote: str) -> Bucket:
        if remote not in self._of:
            self._of[remote] = Bucket(self._each, self._now_s)
            if len(self._of) > MAX_REMOTES:
                self._of.popitem(last=False)
        self._of.move_to_end(remote)
        return self._of[remote]
