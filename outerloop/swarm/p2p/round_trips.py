"""Measure the round-trip time to each of several peers repeatedly, and notice peers that no longer answer.

A peer that has answered before is asked about once per second. If there are more than RATE peers, each is asked less
often, so that the total remains at RATE requests per second. A peer that has never answered, for example because it is
behind a router, is asked every RETRY_S seconds, and never counts as lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import limit

EVERY_S = 1.0
"""Shortest pause after a request to a peer has ended, before the next request to that peer."""
RATE = 8.0
"""Maximum number of requests per second to peers that have answered."""
RETRY_S = 60.0
"""Pause before the next request to a peer that has never answered."""
ANSWER_S = 3.0
"""Time limit for an answer."""
LOST = 2
"""Number of consecutive requests without an answer after which a peer that has answered before is lost."""


@dataclass(frozen=True)
class Link:
    """The link to one peer.

    round_trip_s: the round-trip time of the newest answer; None if the peer has never answered.
    failures: number of consecutive requests without an answer.
    """

    round_trip_s: float | None = None
    failures: int = 0

    @property
    def is_lost(self) -> bool:
        """Return whether the peer has answered before, but no longer does."""
        return self.round_trip_s is not None and self.failures >= LOST


class RoundTrips:
    """Measures round-trip times in background tasks. All methods must be called in the same event loop.

    `ask` takes a full multiaddr, and returns the round-trip time to the peer at this address in seconds. It raises
    Unreachable, BrokenStream or TimeoutError if the peer does not answer.
    """

    def __init__(self, ask: Callable[[str], Awaitable[float]]) -> None:
        self._ask = ask
        self._addresses: dict[str, str] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.links: dict[str, Link] = {}

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Measure these peers from now on, and no others. `addresses`: peer id -> full multiaddr."""
        self._addresses = dict(addresses)
        for peer in self._tasks.keys() - addresses.keys():
            self._tasks.pop(peer).cancel()
            self.links.pop(peer, None)
        for peer in addresses.keys() - self._tasks.keys():
            self._tasks[peer] = asyncio.create_task(self._repeat(peer))

    async def _repeat(self, peer: str) -> None:
        """Measure one peer until it is no longer followed."""
        link = Link()
        while True:
            try:
                async with limit(ANSWER_S):
                    link = Link(await self._ask(self._addresses[peer]))
            except (Unreachable, BrokenStream, TimeoutError):
                link = replace(link, failures=link.failures + 1)
            self.links[peer] = link
            await asyncio.sleep(RETRY_S if link.round_trip_s is None else max(EVERY_S, self._known / RATE))

    @property
    def _known(self) -> int:
        """Return the number of peers that have answered."""
        return sum(link.round_trip_s is not None for link in self.links.values())
