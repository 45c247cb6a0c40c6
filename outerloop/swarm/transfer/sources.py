"""Whom to ask next for a content: of those who may hold it, whoever has done the least harm so far.

First those who never gave wrong bytes, then whoever has wasted the least of this peer's time, then the caller's order.
Wasted is the time that it was silent before a stream broke, the pause after a stream that brought less than one piece,
and of a turn that was over before the content was here the time beyond what SLOW_LINK_BYTES_PER_S would have needed for
what it brought. What is known of a holder outlives the content, so a frozen one costs one stall and not one for each
content; giving a content whole clears it of wasted time.

A holder has a turn of TRANSFER_S, and each time that it is asked for the same content again as long as all its turns
before: so a large content comes over a slow link, and one that gives slowly on purpose costs a share of the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outerloop.swarm.p2p.framing import PIECE_BYTES
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import GONE_AFTER_S, GONE_TRIES, RETRY_S, TRANSFER_S

logger = logging.getLogger(__name__)
SLOW_LINK_BYTES_PER_S = 125_000
"""1 Mbit/s: the slowest link that is counted on. A holder that is slower loses no content, but others go first."""


class ContentUnavailable(Exception):
    """Nobody could give a content, or not in time; the message tells what became of each holder."""


class SourceReputation:
    """What this peer knows of others as givers. `wrong`: contents that a holder gave wrongly."""

    def __init__(self) -> None:
        self.wrong: Counter[str] = Counter()
        self.wasted_s: defaultdict[str, float] = defaultdict(float)
        self._lies: set[tuple[str, bytes]] = set()  # each cost the download of a whole content, so they stay few

    def blame(self, holder: str, sha: bytes) -> None:
        """A holder gave other bytes than those with this sha256. Once is enough: it is not asked for them again."""
        if not self.lied(holder, sha):
            self._lies.add((holder, sha))
            self.wrong[holder] += 1
            logger.warning("%s gave wrong bytes for %s; it is not asked for them again", holder, sha.hex()[:16])

    def lied(self, holder: str, sha: bytes) -> bool:
        return (holder, sha) in self._lies


@dataclass
class _Tries:
    fruitless: int = 0  # in a row
    failed_dials: int = 0  # in a row
    undialled_since_s: float = 0.0
    ready_at_s: float = 0.0
    last_error: str = ""
    used_s: float = 0.0  # of all turns that were over before the content was here


class Sources:
    """The holders of one content, as long as it takes to get it. `names` may grow meanwhile."""

    def __init__(self, names: Sequence[str], reputation: SourceReputation, sha: bytes) -> None:
        self._reputation = reputation
        self._sha = sha
        self._names = names
        self._tries: dict[str, _Tries] = {}
        self._out: dict[str, str] = {}
        self._meet()

    def __str__(self) -> str:
        errors = {name: tries.last_error for name, tries in self._tries.items() if tries.last_error}
        return "; ".join(f"{name} {why}" for name, why in (errors | self._out).items()) or "no holder"

    def next(self, free: Callable[[str], bool]) -> str | None:
        """Whom to ask of those that are free; None to wait for one. Raises ContentUnavailable when nobody is left."""
        now_s = asyncio.get_running_loop().time()
        names = [name for name in self._left() if free(name) and self._tries[name].ready_at_s <= now_s]
        return min(names, key=self._wasted_s, default=None)

    def alternatives(self) -> bool:
        """Whether there is more than one to ask."""
        return len(self._tries) - len(self._out) > 1

    async def pause(self) -> None:
        """Wait until the next holder may be asked: attempts in vain are repeated with growing pauses."""
        tries = self._tries[min(self._left(), key=self._wasted_s)]
        await asyncio.sleep(tries.ready_at_s - asyncio.get_running_loop().time())
        tries.ready_at_s = 0.0

    def leave_out(self, name: str, why: str) -> None:
        """Do not ask this holder again for this content."""
        self._out[name] = why

    def failed(self, name: str, error: Exception, *, brought: int, silent_s: float) -> None:
        """A stream broke after it had brought so many bytes, and had been silent for so long."""
        tries = self._tries[name]
        tries.last_error = str(error)
        tries.fruitless = 0 if brought >= PIECE_BYTES else tries.fruitless + 1
        pause_s = min(RETRY_S[0] * 2 ** min(tries.fruitless - 1, 10), RETRY_S[1]) if tries.fruitless else 0.0
        tries.ready_at_s = asyncio.get_running_loop().time() + pause_s
        self._reputation.wasted_s[name] += silent_s + pause_s
        self._note_dial(name, tries, error)

    def turn_s(self, name: str) -> float:
        """How long a holder may give while others wait."""
        return max(TRANSFER_S, self._tries[name].used_s)

    def turn_over(self, name: str, *, brought: int, after_s: float) -> None:
        """A holder gave so many bytes in its turn, and more are missing."""
        tries = self._tries[name]
        tries.last_error = f"gave {brought} bytes in {after_s:.0f} s"
        tries.used_s += after_s
        self._reputation.wasted_s[name] += max(0.0, after_s - brought / SLOW_LINK_BYTES_PER_S)

    def gave_all(self, name: str) -> None:
        self._reputation.wasted_s[name] = 0.0

    def _left(self) -> list[str]:
        """Who may be asked: of those that are not left out who gave wrong bytes least often. Raises
        ContentUnavailable.
        """
        self._meet()
        left = [name for name in self._tries if name not in self._out]
        if not left:
            raise ContentUnavailable(f"{self._sha.hex()[:16]}: {self}")
        least = min(self._reputation.wrong[name] for name in left)
        return [name for name in left if self._reputation.wrong[name] == least]

    def _wasted_s(self, name: str) -> float:
        """With its turns for this content, so that another one comes next."""
        return self._reputation.wasted_s[name] + self._tries[name].used_s

    def _meet(self) -> None:
        """Those that were named since."""
        for name in self._names:
            if name not in self._tries:
                self._tries[name] = _Tries()
                if self._reputation.lied(name, self._sha):
                    self.leave_out(name, "gave wrong bytes")

    def _note_dial(self, name: str, tries: _Tries, error: Exception) -> None:
        now_s = asyncio.get_running_loop().time()
        if not isinstance(error, Unreachable):
            tries.failed_dials = 0
            return
        tries.undialled_since_s = tries.undialled_since_s if tries.failed_dials else now_s
        tries.failed_dials += 1
        if tries.failed_dials > GONE_TRIES and now_s - tries.undialled_since_s > GONE_AFTER_S:
            self.leave_out(name, f"is gone ({error})")
