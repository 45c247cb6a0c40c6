"""What this peer refused, from whom and why: every one is counted by kind, and told in the log now and then.

    outsiders   a stream of a peer that is not on the allow-list, has no part in what it asks for, or is a second one
                with the same key (incarnations.py)
    records     a roster record that is not its owner's, too large or too long-lived, or of a peer outside
    requests    what came on a stream and is no message of its protocol, or a longer one than allowed
    payloads    a payload that its owner did not sign for this round, that is larger than allowed, or that cannot be
                landed: nobody can decode it, or its norm is far beyond the others'
    ballots     a message of the agreement that cannot be taken, or a history that nothing proves
    manifests   a state's name that its donor did not sign

A stranger decides how often this happens, so a name is told once in QUIET_S for each kind, with how many there were,
and only the last NAMES of them are remembered.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Literal, get_args

from outerloop.types import printable

logger = logging.getLogger(__name__)
Kind = Literal["outsiders", "records", "requests", "payloads", "ballots", "manifests"]
QUIET_S = 30.0
NAMES = 1024


class RejectionLog:
    """Counts of one peer, since it started."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.of_kind: Counter[str] = Counter()
        self._told: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()  # when, and how many since

    def note(self, kind: Kind, who: str, why: str) -> None:
        """`who` by name or peer id, checked before; `why` in one line."""
        self.of_kind[kind] += 1
        told_s, more = self._told.pop((kind, who), (-QUIET_S, 0))
        loud = self._now_s() - told_s >= QUIET_S
        self._told[kind, who] = (self._now_s(), 0) if loud else (told_s, more + 1)
        while len(self._told) > NAMES:
            self._told.popitem(last=False)
        if loud:
            logger.warning(
                "refused (%s) %s: %s%s",
                kind,
                printable(who),
                printable(why),
                f", and {more} before that" if more else "",
            )

    def counters(self) -> dict[str, float]:
        """All of them, and by kind, as the metrics name them."""
        by_kind = {f"refused_{kind}": float(self.of_kind[kind]) for kind in get_args(Kind)}
        return {"refused_messages": sum(by_kind.values()), **by_kind}
