"""Report in one line each which peers enter and leave the roster of a run, and why they leave.

    joined: Ada's laptop (…hykDHL5B), round 61
    left: Ada's laptop (…hykDHL5B), round 128: resigned
    left: …8BU2xWqZ, round 130: no messages

The rosters are those of the decided commits, so all peers report the same changes. A peer that misses a few rounds
stays in the roster (consensus/roster_change.py). Any machine may join an open run, so the number of lines is limited
(LINES). Changes beyond the limit are counted, and reported in one line.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from outerloop.swarm.access.access_control import AllowList
from outerloop.swarm.access.rate_limits import Bucket, Rate
from outerloop.swarm.accountability.contributors import ContributorService
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.validation import id_of

LINES = Rate(burst=10, per_s=0.1)
"""Maximum number of lines: 10 at once, and after that one every 10 s."""
JOINED, LEFT = "joined", "left"


@dataclass(frozen=True)
class Change:
    """A change of the roster: the peer (id), JOINED or LEFT, the number of the round from 1, and why the peer left."""

    peer: str
    kind: str
    round: int
    why: str = ""

    def line(self, name: str) -> str:
        """Return a line for display. `name`: public name of the peer; "" if it has none."""
        short = f"…{self.peer[-8:]}"
        who = f"{name} ({short})" if name else short
        return f"{self.kind}: {who}, round {self.round}" + (f": {self.why}" if self.why else "")


class RosterNews:
    """The lines about changes of the roster that have not been taken yet.

    own: this peer's name, about which nothing is reported. fragments: number of fragments of the model; each has a
    commit in each round. allow: knows which peers were expelled or removed. contributors: knows the public names.
    """

    def __init__(
        self,
        *,
        own: str,
        fragments: int,
        allow: AllowList,
        contributors: ContributorService,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own, self._fragments, self._allow, self._contributors = id_of(own), fragments, allow, contributors
        self._seen: Commit | None = None
        self._bucket = Bucket(LINES, now_s)
        self._omitted: Counter[str] = Counter()
        self._lines: deque[str] = deque()
        self._tasks, self._in_order = BackgroundTasks(), asyncio.Lock()

    def follow(self, log: Sequence[CommitCertificate]) -> None:
        """Report the changes in these commits, oldest first, since the last call. The first call reports none.

        Call this from the network thread.
        """
        changes = list(self._changes(log))
        if changes or self._omitted:
            self._tasks.start(self._report(changes))

    def take(self) -> list[str]:
        """Return the new lines. Any thread may call this."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def _changes(self, log: Sequence[CommitCertificate]) -> Iterator[Change]:
        before = self._seen or log[-1].commit
        for decided in log:
            if decided.commit.number > before.number:
                yield from self._changed(before, decided)
                before = decided.commit
        self._seen = before

    def _changed(self, before: Commit, decided: CommitCertificate) -> Iterator[Change]:
        """Yield the differences between the roster of a commit and that of a later one."""
        number = decided.commit.number // self._fragments + 1
        earlier, later = ({id_of(peer) for peer in commit.roster} - {self._own} for commit in (before, decided.commit))
        resigned = {id_of(one.peer) for one in decided.resignations}
        for peer in sorted(later - earlier):
            yield Change(peer, JOINED, number)
        for peer in sorted(earlier - later):
            why = self._allow.why_not(peer) or ("resigned" if peer in resigned else "no messages")
            yield Change(peer, LEFT, number, why)

    async def _report(self, changes: Sequence[Change]) -> None:
        async with self._in_order:
            if any(change.peer not in self._contributors.names.texts() for change in changes):
                await self._contributors.learn_present()
            names = self._contributors.names.texts()
            for change in changes:
                if self._bucket.take(1):
                    self._lines.append(change.line(names.get(change.peer, "")))
                else:
                    self._omitted[change.kind] += 1
            if self._omitted and self._bucket.take(1):
                counts = ", ".join(f"{count} more {kind}" for kind, count in sorted(self._omitted.items()))
                self._lines.append(f"{counts}: outerloop status and outerloop watch list all peers")
                self._omitted.clear()
