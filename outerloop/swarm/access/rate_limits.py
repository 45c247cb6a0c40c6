"""Rate limits: a token bucket per remote peer, and one shared by all non-members.

    Rate(burst, per_s)        the amount available at once, and the refill rate
    spend(remote, amount)     spend the whole amount or nothing, so that a refused request costs nothing
    charge(remote, amount)    spend an amount that is known only after the work is done: the balance may become
                              negative, and nothing more can be spent until the bucket has refilled

A member draws only on its own bucket. Identities cost nothing, so a non-member draws on its own bucket and on a bucket
that all non-members share. This bounds the total spending of all non-members without reducing what members may spend.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_REMOTES = 2048
"""Maximum number of buckets: twice the maximum number of peers in a run. The least recently used is dropped first."""
EVERYBODY = "all non-members"
"""Owner of the shared bucket, as named in refusals."""


@dataclass(frozen=True)
class Rate:
    """A token-bucket rate: the burst size, and the refill rate in tokens per second."""

    burst: float
    per_s: float


def loop_s() -> float:
    """Return the time of the running event loop, which is virtual in tests."""
    return asyncio.get_running_loop().time()


class Bucket:
    """A token bucket that holds at most `rate.burst` tokens and starts full. The clock is first read on first use."""

    def __init__(self, rate: Rate, now_s: Callable[[], float]) -> None:
        self._rate = rate
        self._now_s = now_s
        self._at_s: float | None = None
        self._tokens = rate.burst

    def left(self) -> float:
        """Refill the bucket for the elapsed time, and return its balance, which may be negative after `charge`."""
        now_s = self._now_s()
        passed_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._tokens = min(self._rate.burst, self._tokens + passed_s * self._rate.per_s)
        self._at_s = now_s
        return self._tokens

    def take(self, amount: float) -> bool:
        """Spend `amount` tokens if the bucket has that many. Return whether they were spent."""
        if amount > self.left():
            return False
        self._tokens -= amount
        return True

    def charge(self, amount: float) -> None:
        """Spend `amount` tokens unconditionally; the balance may become negative."""
        self._tokens = self.left() - amount


class Budget:
    """The buckets for one kind of cost: one per remote peer, and a shared one for all non-members.

    Args:
        each: rate limit per remote peer, member or not.
        strangers: rate limit for all non-members together.
        is_member: returns whether a peer id belongs to a member.
        now_s: the clock, in seconds.
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
        """Return the owner (`remote` or EVERYBODY) of a bucket with fewer than `amount` tokens.

        Returns "" if all buckets have enough.
        """
        return next((who for who, bucket in self._drawn_on(remote).items() if amount > bucket.left()), "")

    def spend(self, remote: str, amount: float = 1.0) -> str:
        """Spend `amount` tokens and return "". If a bucket has too few, spend nothing and return the bucket's owner."""
        lacking = self.lacking(remote, amount)
        if not lacking:
            self.charge(remote, amount)
        return lacking

    def per_s(self, whose: str) -> float:
        """Return the refill rate, in tokens per second, of the bucket owned by `whose` (as returned by `lacking`)."""
        return (self._shared if whose == EVERYBODY else self._each).per_s

    def charge(self, remote: str, amount: float) -> None:
        """Spend `amount` tokens unconditionally; balances may become negative."""
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
