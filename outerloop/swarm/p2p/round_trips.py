"""Measure the round-trip time to each of several peers repeatedly, and notice peers that no longer answer.

A peer that has answered before is asked about once per second. If there are more than RATE peers, each is asked less
often, so that the total remains at RATE requests per second. A peer that has never answered, for example because it is
behind a router, is asked every RETRY_S seconds, and never counts as lost.
"""

from __future__ import annotations

import asyncio
import itertools
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
MAX_PEERS = 1024
"""Maximum number of peers that are measured: any number of identities may publish a record."""
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
    Unreachable or TimeoutError if the peer does not answer, and BrokenStream if it refuses to.
    """

    def __init__(self, ask: Callable[[str], Awaitable[float]]) -> None:
        self._ask = ask
        self._addresses: dict[str, str] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.links: dict[str, Link] = {}

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Measure the first MAX_PEERS of these peers from now on, and no others.

        `addresses`: peer id -> full multiaddr. The first requests to new peers are spread over time: about RATE of them
        are sent per second.
        """
        addresses = self._addresses = dict(itertools.islice(addresses.items(), MAX_PEERS))
        for peer in self._tasks.keys() - addresses.keys():
            self._tasks.pop(peer).cancel()
            self.links.pop(peer, None)
        for number, peer in enumerate(addresses.keys() - self._tasks.keys()):
            self._tasks[peer] = asyncio.create_task(self._repeat(peer, number / RATE))

    async def _repeat(self, peer: str, pause_s: float) -> None:
        """Measure one peer, for the first time after `pause_s`, until it is no longer followed."""
        link = Link()
        await asyncio.sleep(pause_s)
        while True:
            try:
                async with limit(ANSWER_S):
                    link = Link(await self._ask(self._addresses[peer]))
            except BrokenStream:
                pass  # it refuses the request, for example because others have sent too many: it is there
            except (Unreachable, TimeoutError):
                link = replace(link, failures=link.failures + 1)
            self.links[peer] = link
            await asyncio.sleep(RETRY_S if link.round_trip_s is None else max(EVERY_S, self._known / RATE))

    @property
    def _known(self) -> int:
        """Return the number of peers that have answered."""
        return sum(link.round_trip_s is not None for link in self.links.values())
