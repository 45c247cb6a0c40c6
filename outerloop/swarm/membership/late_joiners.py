"""Peers that came when the sitting was under way, by name, until they have gone.

Each peer id keeps one name: the first it used here, or the one that most formed peers report. Seats and votes are
counted by name, so a second name would be a second vote. Anybody can come late to an open run, so at most MAX_PEERS are
held; a peer whose record has left the roster makes room. Those that this peer takes for members while they ask are held
too: the swarm may form without one of them.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

from outerloop.swarm.timeouts import ROSTER_EXPIRY_S
from outerloop.swarm.validation import MAX_PEERS, id_of

GONE_LOOKS = 3
"""A peer has gone when so many looks in a row, ROSTER_EXPIRY_S apart, show no record of it: one read may miss some."""


class LateJoiners:
    """`names`: peer id -> name. `there`: reads the ids of all that have a record, this peer's own included."""

    def __init__(self, there: Callable[[], Awaitable[Iterable[str]]]) -> None:
        self.names: dict[str, str] = {}
        self._there = there
        self._missed: Counter[str] = Counter()
        self._look_at_s = -math.inf

    def add(self, name: str) -> bool:
        """Add one. Return whether its id goes by this name: not if it had another, or if there is no room."""
        peer_id = id_of(name)
        if peer_id not in self.names and len(self.names) < MAX_PEERS:
            self.names[peer_id] = name
        self._missed.pop(peer_id, None)
        return self.names.get(peer_id) == name

    def add_told(self, told: Iterable[Mapping[str, str]]) -> None:
        """Add those of whom more than half tell one name. `told`: peer id -> name, of each peer that has formed."""
        lists = list(told)
        counts = Counter(name for one in lists for name in one.values())
        for name in [name for name, count in counts.items() if 2 * count > len(lists)]:
            self.add(name)

    async def forget_gone(self) -> None:
        """Look who is still there, once in ROSTER_EXPIRY_S at most."""
        now_s = asyncio.get_running_loop().time()
        if not self.names or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + ROSTER_EXPIRY_S
        there = set(await self._there())
        if len(there) < 2:
            return  # only this peer itself: the roster could not be read
        for peer_id in list(self.names):
            self._missed[peer_id] = 0 if peer_id in there else self._missed[peer_id] + 1
            if self._missed[peer_id] >= GONE_LOOKS:
                del self.names[peer_id], self._missed[peer_id]
