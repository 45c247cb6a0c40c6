"""A limit in bytes per second, shared by everything that sends, on the loop's clock."""

from __future__ import annotations

import asyncio
import math

from outerloop.swarm.p2p.framing import PIECE_BYTES
from outerloop.swarm.timeouts import STALL_S
from outerloop.types import UserError

LEAST_BYTES_PER_S = 2 * PIECE_BYTES / STALL_S
"""A piece in half of the time after which others give up."""


class RateLimiter:
    """Who takes a turn waits until everything taken before it is through. `bytes_per_s` None: nobody waits.

    Nothing is saved up while nobody sends: by any time t after the first turn at most `bytes_per_s` * t bytes and one
    turn have left.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def take(self, count: int) -> None:
        """Wait for the turn of `count` bytes."""
        if self.bytes_per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        turn_s = max(now_s, self._free_at_s)
        self._free_at_s = turn_s + count / self.bytes_per_s
        await asyncio.sleep(turn_s - now_s)


def pace_of(max_mbit: float | None) -> RateLimiter:
    """The limit of a user, in Mbit/s of payloads and state; None: none. Raises UserError for one that stalls others."""
    if max_mbit is None:
        return RateLimiter(None)
    number = isinstance(max_mbit, int | float) and math.isfinite(max_mbit)
    if not number or max_mbit * 1e6 / 8 < LEAST_BYTES_PER_S:
        least = f"{LEAST_BYTES_PER_S * 8e-6:.2f}"
        raise UserError(
            f"exchange.max_mbit={max_mbit} is no upload limit that others can live with, they would take this peer for"
            f" frozen: type exchange.max_mbit={least} or more, or null for no limit"
        )
    return RateLimiter(max_mbit * 1e6 / 8)
