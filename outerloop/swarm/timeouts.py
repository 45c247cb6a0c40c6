"""Every limit in time of the swarm, in seconds. No await of this package goes without one of these or a caller's own.

They are for the open internet: on one machine nothing here is ever reached unless a peer is dead or frozen.
`limit` applies them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

START_S = 12.0  # p2pd up and in touch with one initial peer, all attempts together
BOOTSTRAP_S = 6.0  # p2pd is launched again for this long: an initial peer may be starting at this very moment
RELAUNCH_S = 1.0  # pause between two launches
STOP_S = 3.0  # each step of a shutdown: DHT, streams, SIGTERM to p2pd
DHT_S = 10.0  # one read or write of the roster; hivemind gives up on a frozen node after 3 s and asks the next

ROSTER_EXPIRY_S = 60.0  # a peer that stopped refreshing its record is forgotten after this
ROSTER_REFRESH_S = 20.0  # three chances to refresh before the record expires
ROSTER_LEAST_S = 5.0  # a record is not written more often than this, whatever news there is
VIEW_S = 5.0  # asking one peer which members it sees
FORM_POLL_S = 0.1, 1.0  # first and longest pause between two looks at the roster while the swarm forms

OPEN_S = 10.0  # opening one stream, dial included
STALL_S = 30.0  # one 256 KiB piece; slower than 70 kbit/s counts as broken
BUSY_S = 10.0  # who queues for a transfer is told so this often: silence for STALL_S would mean frozen
RETRY_S = 0.1, 2.0  # first and longest pause between two attempts at a peer
GONE_AFTER_S = 6.0  # a peer is gone when every dial failed for this long: libp2p really dials once in 5 s
GONE_TRIES = 3  # ... and when more than this many dials failed

MEASURE_S = 20.0  # one probe: a few round trips and 1 MiB each way, so 1 Mbit/s just passes
WATCH_S = 2.0  # pause between two looks of an observer at the roster

LINGER_S = 10.0  # how long a finished peer stays for those that have not got everything yet


@asynccontextmanager
async def _limit(seconds: float | None) -> AsyncIterator[None]:
    """`asyncio.timeout` for Python 3.10. Not `wait_for`, which can swallow a cancellation before Python 3.12."""
    task, expired = asyncio.current_task(), False
    assert task is not None

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, expire)
    try:
        yield
    except asyncio.CancelledError:
        if expired:
            raise TimeoutError from None
        raise
    finally:
        if timer is not None:
            timer.cancel()


limit = asyncio.timeout if sys.version_info >= (3, 11) else _limit
"""`async with limit(seconds)`: TimeoutError when the block takes longer."""
