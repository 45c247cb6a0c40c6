"""A limit in bytes per second, shared by all senders, measured by the event loop's clock."""

from __future__ import annotations

import asyncio
import math

from outerloop.swarm.p2p.framing import PIECE_BYTES
from outerloop.swarm.timeouts import STALL_S
from outerloop.types import UserError

MIN_BYTES_PER_S = 2 * PIECE_BYTES / STALL_S
"""The rate that delivers a piece in half of the time after which other peers give up."""


class RateLimiter:
    """A rate limiter: each call of `take` waits until the bytes of all calls before it have had their time.

    `bytes_per_s` None: no limit. Idle time earns no credit: by any time t after the first call at most
    `bytes_per_s` * t bytes plus those of one call have been sent.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def take(self, count: int) -> None:
        """Wait until `count` bytes may be sent."""
        if self.bytes_per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        turn_s = max(now_s, self._free_at_s)
        self._free_at_s = turn_s + count / self.bytes_per_s
        await asyncio.sleep(turn_s - now_s)


def limiter_for(max_mbit: float | None) -> RateLimiter:
    """Return the limiter for the user's limit in Mbit/s; None: no limit. Raises UserError if the limit is too low."""
    if max_mbit is None:
        return RateLimiter(None)
    number = isinstance(max_mbit, int | float) and math.isfinite(max_mbit)
    if not number or max_mbit * 1e6 / 8 < MIN_BYTES_PER_S:
        least = f"{MIN_BYTES_PER_S * 8e-6:.2f}"
        raise UserError(
            f"exchange.max_mbit={max_mbit} is too low an upload limit, other peers would consider this peer frozen:"
            f" set exchange.max_mbit={least} or more, or null for no limit"
        )
    return RateLimiter(max_mbit * 1e6 / 8)
