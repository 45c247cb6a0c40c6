"""Exchange bytes with all peers outside of rounds: before the first inner step, and after the last one."""

from __future__ import annotations

from collections.abc import Callable

from outerloop.exchange_protocols import meeting
from outerloop.protocols import Exchange
from outerloop.types import Contribution


class AllGathers:
    """One peer's sequence of all-gather calls. Its n-th call receives what other peers send in their own n-th calls.

    Args:
        exchange: sends the bytes.
        before: called before each all-gather; waits until no round is being launched.
        timeout_s: maximum time that an all-gather waits.

    Attributes:
        count: number of all-gathers that this peer has taken part in or skipped.
    """

    def __init__(self, exchange: Exchange, *, before: Callable[[], object], timeout_s: float) -> None:
        self.exchange, self.before, self.timeout_s = exchange, before, timeout_s
        self.count = 0

    def __call__(self, blob: bytes) -> list[Contribution]:
        """Send bytes to all peers, and return the bytes of all peers, including this one.

        All peers must call this the same number of times. Raises RoundFailed if the all-gather fails.
        """
        self.before()
        return meeting(self.exchange).all_gather(blob, self.next_number(), self.timeout_s)

    def next_number(self) -> int:
        """Return the number of the next all-gather, and count it."""
        self.count += 1
        return self.count
