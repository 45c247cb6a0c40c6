"""Late joiners: peers that joined after the session had started and have not left the roster since.

Each peer id keeps one name: the first name that it used with this peer, or the one that most formed peers report.
Members and votes are counted by name, so a second name would give a second vote. In an open run any peer can join late,
so at most MAX_PEERS late joiners are kept; a peer is removed once its record is no longer in the roster. Members that
send requests are stored as well, because the run may form without them.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

from outerloop.swarm.timeouts import ROSTER_EXPIRY_S
from outerloop.swarm.validation import MAX_PEERS, id_of

GONE_LOOKS = 3
"""A peer counts as gone if its record is missing from this many consecutive roster reads, ROSTER_EXPIRY_S apart. A
single read may miss some records."""


class LateJoiners:
    """The late joiners that this peer knows. `names`: peer id -> name.

    `present`: reads the roster and returns the ids of all peers that have a record, including this peer.
    """

    def __init__(self, present: Callable[[], Awaitable[Iterable[str]]]) -> None:
        self.names: dict[str, str] = {}
        self._present = present
        self._missed: Counter[str] = Counter()
        self._look_at_s = -math.inf

    def add(self, name: str) -> bool:
        """Add a peer. Return False if its id is already known under another name, or if MAX_PEERS peers are known."""
        peer_id = id_of(name)
        if peer_id not in self.names and len(self.names) < MAX_PEERS:
            self.names[peer_id] = name
        self._missed.pop(peer_id, None)
        return self.names.get(peer_id) == name

    def add_reported(self, reported: Iterable[Mapping[str, str]]) -> None:
        """Add each name that is in more than half of the reports. `reported`: one map, id -> name, per formed peer."""
        lists = list(reported)
        counts = Counter(name for names in lists for name in names.values())
        for name in [name for name, count in counts.items() if 2 * count > len(lists)]:
            self.add(name)

    async def forget_gone(self) -> None:
        """Remove the peers that are gone. Read the roster at most once per ROSTER_EXPIRY_S."""
        now_s = asyncio.get_running_loop().time()
        if not self.names or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + ROSTER_EXPIRY_S
        present = set(await self._present())
        if len(present) < 2:
            return  # if only this peer is in the roster, the read has failed
        for peer_id in list(self.names):
            self._missed[peer_id] = 0 if peer_id in present else self._missed[peer_id] + 1
            if self._missed[peer_id] >= GONE_LOOKS:
                del self.names[peer_id], self._missed[peer_id]
