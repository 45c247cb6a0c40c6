"""Late joiners: peers that joined after the session had started, by name, until they have gone.

Each peer id keeps one name: the first that it used with this peer, or the one that most formed peers report. Members
and votes are counted by name, so a second name would give a second vote. In an open run any peer can join late, so at
most MAX_PEERS are kept; a peer whose record has left the roster makes room. A peer that this one takes for a member
when it asks is kept too, because the swarm may form without it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

from outerloop.swarm.timeouts import ROSTER_EXPIRY_S
from outerloop.swarm.validation import MAX_PEERS, id_of

GONE_LOOKS = 3
"""A peer has gone if this many roster reads in a row, ROSTER_EXPIRY_S apart, lack its record. A single read may miss
some records."""


class LateJoiners:
    """The late joiners that this peer knows. `names`: peer id -> name.

    `present`: reads the ids of all peers that have a roster record, this peer's own included.
    """

    def __init__(self, present: Callable[[], Awaitable[Iterable[str]]]) -> None:
        self.names: dict[str, str] = {}
        self._present = present
        self._missed: Counter[str] = Counter()
        self._look_at_s = -math.inf

    def add(self, name: str) -> bool:
        """Add a peer. Return whether its id is now known by this name: false if it has another, or there is no room."""
        peer_id = id_of(name)
        if peer_id not in self.names and len(self.names) < MAX_PEERS:
            self.names[peer_id] = name
        self._missed.pop(peer_id, None)
        return self.names.get(peer_id) == name

    def add_reported(self, reported: Iterable[Mapping[str, str]]) -> None:
        """Add each name that more than half of the lists hold. `reported`: peer id -> name, from each formed peer."""
        lists = list(reported)
        counts = Counter(name for names in lists for name in names.values())
        for name in [name for name, count in counts.items() if 2 * count > len(lists)]:
            self.add(name)

    async def forget_gone(self) -> None:
        """Remove the peers that have gone; read the roster once per ROSTER_EXPIRY_S at most."""
        now_s = asyncio.get_running_loop().time()
        if not self.names or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + ROSTER_EXPIRY_S
        present = set(await self._present())
        if len(present) < 2:
            return  # only this peer itself: the roster could not be read
        for peer_id in list(self.names):
            self._missed[peer_id] = 0 if peer_id in present else self._missed[peer_id] + 1
            if self._missed[peer_id] >= GONE_LOOKS:
                del self.names[peer_id], self._missed[peer_id]
