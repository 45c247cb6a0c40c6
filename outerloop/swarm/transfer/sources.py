"""Choose the next source to ask for an item, e.g. a payload: the most reliable of the peers that may hold it.

Sources are ordered by the number of items for which they sent wrong bytes, then by the time they have wasted, then by
the caller's order. Three kinds of time count as wasted:

    a stream broke                                 the silence before it broke
    a stream delivered less than one piece         the pause after it
    a turn ended before the item was complete      the time beyond what a link of SLOW_LINK_BYTES_PER_S would have
                                                   needed for the bytes delivered in the turn

A source's record outlives the item, so a frozen source causes only one stall, not one per item. Delivering a complete
item clears the wasted time.

A source's first turn lasts TRANSFER_S. Each further turn for the same item lasts as long as all its previous turns
together. So a large item can arrive over a slow link, and a source that is slow on purpose takes up only part of the
download's time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outerloop.swarm.p2p.framing import PIECE_BYTES
from outerloop.swarm.p2p.transport import FailedDials
from outerloop.swarm.timeouts import RETRY_S, TRANSFER_S

logger = logging.getLogger(__name__)
SLOW_LINK_BYTES_PER_S = 125_000
"""Rate of the slowest expected link, 1 Mbit/s. A slower source can still deliver, but other sources are asked first."""


class ContentUnavailable(Exception):
    """No source delivered the content in time. The message states why each source failed."""


class SourceReputation:
    """Records how reliable other peers are as sources.

    `wrong`: peer -> number of items (payloads or states) for which it sent wrong bytes. `wasted_s`: peer -> seconds
    wasted. `delivered`: the peers that have completed an item.
    """

    def __init__(self) -> None:
        self.delivered: set[str] = set()
        self.wrong: Counter[str] = Counter()
        self.wasted_s: defaultdict[str, float] = defaultdict(float)
        self._wrong_from: set[tuple[str, bytes]] = set()  # stays small: each entry costs one download

    def blame(self, source: str, sha: bytes) -> None:
        """Record that a source sent wrong bytes for the content `sha`. It is not asked for this content again."""
        if not self.sent_wrong_bytes(source, sha):
            self._wrong_from.add((source, sha))
            self.wrong[source] += 1
            logger.warning("%s sent wrong bytes for %s and will not be asked for it again", source, sha.hex()[:16])

    def sent_wrong_bytes(self, source: str, sha: bytes) -> bool:
        return (source, sha) in self._wrong_from


@dataclass
class _Tries:
    fruitless: int = 0  # consecutive streams that broke before delivering one piece
    dials: FailedDials = field(default_factory=FailedDials)
    ready_at_s: float = 0.0
    last_error: str = ""
    used_s: float = 0.0  # total time of turns that ended before the content was complete


class Sources:
    """The sources of one download. The caller may append to `names` while the download runs."""

    def __init__(self, names: Sequence[str], reputation: SourceReputation, sha: bytes) -> None:
        self._reputation = reputation
        self._sha = sha
        self._names = names
        self._tries: dict[str, _Tries] = {}
        self._left_out: dict[str, str] = {}
        self._add_new()

    def __str__(self) -> str:
        errors = {name: tries.last_error for name, tries in self._tries.items() if tries.last_error}
        return "; ".join(f"{name} {why}" for name, why in (errors | self._left_out).items()) or "no holder"

    def next(self, free: Callable[[str], bool]) -> str | None:
        """Return the next source to ask, or None if none is free yet. Raises ContentUnavailable if none is left."""
        now_s = asyncio.get_running_loop().time()
        names = [name for name in self._left() if free(name) and self._tries[name].ready_at_s <= now_s]
        return min(names, key=self._wasted_s, default=None)

    def alternatives(self) -> bool:
        """Return whether this download can still use more than one source."""
        return len(self._tries) - len(self._left_out) > 1

    async def pause(self) -> None:
        """Wait until the next source's backoff is over. The backoff grows with each failed attempt."""
        tries = self._tries[min(self._left(), key=self._wasted_s)]
        await asyncio.sleep(tries.ready_at_s - asyncio.get_running_loop().time())
        tries.ready_at_s = 0.0

    def leave_out(self, name: str, why: str) -> None:
        """Exclude a source from this download. `why`: the reason, for the error message."""
        self._left_out[name] = why

    def failed(self, name: str, error: Exception, *, received_bytes: int, silent_s: float) -> None:
        """Record a broken stream. `silent_s`: the time without received bytes before it broke."""
        tries = self._tries[name]
        tries.last_error = str(error)
        tries.fruitless = 0 if received_bytes >= PIECE_BYTES else tries.fruitless + 1
        pause_s = min(RETRY_S[0] * 2 ** min(tries.fruitless - 1, 10), RETRY_S[1]) if tries.fruitless else 0.0
        tries.ready_at_s = asyncio.get_running_loop().time() + pause_s
        self._reputation.wasted_s[name] += silent_s + pause_s
        if tries.dials.is_gone_after(error):
            self.leave_out(name, f"is gone ({error})")

    def turn_s(self, name: str) -> float:
        """Return the duration of this source's turn. The turn ends only if another download or source is waiting."""
        return max(TRANSFER_S, self._tries[name].used_s)

    def turn_over(self, name: str, *, received_bytes: int, after_s: float) -> None:
        """Record a turn that ended before the content was complete."""
        tries = self._tries[name]
        tries.last_error = f"sent {received_bytes} bytes in {after_s:.0f} s"
        tries.used_s += after_s
        self._reputation.wasted_s[name] += max(0.0, after_s - received_bytes / SLOW_LINK_BYTES_PER_S)

    def delivered(self, name: str) -> None:
        self._reputation.wasted_s[name] = 0.0
        self._reputation.delivered.add(name)

    def _left(self) -> list[str]:
        """Return the remaining sources that have sent wrong bytes for the fewest items.

        Raises ContentUnavailable if no source remains.
        """
        self._add_new()
        left = [name for name in self._tries if name not in self._left_out]
        if not left:
            raise ContentUnavailable(f"{self._sha.hex()[:16]}: {self}")
        least = min(self._reputation.wrong[name] for name in left)
        return [name for name in left if self._reputation.wrong[name] == least]

    def _wasted_s(self, name: str) -> float:
        """Return the seconds that a source has wasted, plus the duration of its previous turns for this content."""
        return self._reputation.wasted_s[name] + self._tries[name].used_s

    def _add_new(self) -> None:
        """Add the sources that the caller has appended to `names` since the last call."""
        for name in self._names:
            if name not in self._tries:
                self._tries[name] = _Tries()
                if self._reputation.sent_wrong_bytes(name, self._sha):
                    self.leave_out(name, "sent wrong bytes")
