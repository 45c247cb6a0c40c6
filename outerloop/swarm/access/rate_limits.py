"""Rate limits: a token bucket per remote peer, and one shared by all non-members.

    Rate(burst, per_s)        so much at once, and so much a second from then on
    spend(remote, amount)     all of it or nothing: whoever is refused has spent nothing
    charge(remote, amount)    what is known only afterwards: the bucket may go below zero, and is refilled first

Members draw only on their own bucket. Identities cost nothing, so whoever is no member draws on a bucket of its own and
on one that all of them share: what many of them spend is bounded, and is not the members'.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_REMOTES = 2048
"""Buckets that are remembered, twice as many as peers of a run; the one that was used least recently goes first."""
EVERYBODY = "all non-members"
"""Whose bucket the shared one is, where a refusal names somebody."""


@dataclass(frozen=True)
class Rate:
    """An amount at once, and an amount a second."""

    burst: float
    per_s: float


def loop_s() -> float:
    """Return the time of the running loop, which is virtual in tests."""
    return asyncio.get_running_loop().time()


class Bucket:
    """Tokens of one spender: `burst` at most, full at first. The clock is read at its first use."""

    def __init__(self, rate: Rate, now_s: Callable[[], float]) -> None:
        self._rate = rate
        self._now_s = now_s
        self._at_s: float | None = None
        self._tokens = rate.burst

    def left(self) -> float:
        """Return the tokens that are there now; below zero when more was charged."""
        now_s = self._now_s()
        passed_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._tokens = min(self._rate.burst, self._tokens + passed_s * self._rate.per_s)
        self._at_s = now_s
        return self._tokens

    def take(self, amount: float) -> bool:
        """Spend an amount, if there is so much; return whether there was."""
        if amount > self.left():
            return False
        self._tokens -= amount
        return True

    def charge(self, amount: float) -> None:
        """Spend an amount, whatever is left."""
        self._tokens = self.left() - amount


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
        self._shared = strangers
        self._of_strangers = Bucket(strangers, now_s)
        self._of: OrderedDict[str, Bucket] = OrderedDict()

    def lacking(self, remote: str, amount: float = 1.0) -> str:
        """Return whose bucket has less than an amount, the remote's or EVERYBODY's; empty when none has."""
        return next((who for who, bucket in self._drawn_on(remote).items() if amount > bucket.left()), "")

    def spend(self, remote: str, amount: float = 1.0) -> str:
        """Spend an amount. Return whose bucket has less; nothing is spent then. Empty: it is spent."""
        lacking = self.lacking(remote, amount)
        if not lacking:
            self.charge(remote, amount)
        return lacking

    def per_s(self, whose: str) -> float:
        """Return the rate of a bucket that `lacking` has named."""
        return (self._shared if whose == EVERYBODY else self._each).per_s

    def charge(self, remote: str, amount: float) -> None:
        """Spend an amount, whatever is left."""
        for bucket in self._drawn_on(remote).values():
            bucket.charge(amount)

    def _drawn_on(self, remote: str) -> dict[str, Bucket]:
        own = {remote: self._bucket(remote)}
        return own if self._is_member(remote) else own | {EVERYBODY: self._of_strangers}

    def _bucket(self, remote: str) -> Bucket:
        if remote not in self._of:
            self._of[remote] = Bucket(self._each, self._now_s)
            if len(self._of) > MAX_REMOTES:
                self._of.popitem(last=False)
        self._of.move_to_end(remote)
        return self._of[remote]
