"""Rejection log: counts what this peer refused, and logs sender and reason at a limited rate.

    outsiders   a stream of a peer that is not on the allow-list, may not use the protocol, or is a second process with
                the same key (incarnations.py)
    records     a roster record not signed by its owner, too large, valid for too long, or of a peer outside the run
    requests    data on a stream that is not a message of its protocol, or longer than allowed; requests over a limit
    payloads    a payload not signed by its owner for this round, larger than allowed, or impossible to land because it
                cannot be decoded or its norm is far above those of other payloads
    ballots     a consensus message that cannot be accepted, or a history without proof
    manifests   the name of a state that its donor did not sign

Remote peers control how often this happens. So each (kind, name) pair is logged at most once per QUIET_S, with the
number of refusals not logged since the line before, and only the last NAMES pairs are remembered.
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
    """The rejection counts of one peer since it started."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.of_kind: Counter[str] = Counter()
        self._told: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()  # when logged, count since

    def note(self, kind: Kind, who: str, why: str) -> None:
        """Count a refusal, and log it unless `who` was logged for this kind within QUIET_S.

        `who`: a name or peer id that was verified before. `why`: the reason, in one line.
        """
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

    @property
    def logged(self) -> list[tuple[str, str]]:
        """Return the (kind, name) pairs whose last log line is remembered, in the order of their last refusal."""
        return list(self._told)

    def counters(self) -> dict[str, float]:
        """Return the counts in total and by kind, under their metric names."""
        by_kind = {f"refused_{kind}": float(self.of_kind[kind]) for kind in get_args(Kind)}
        return {"refused_messages": sum(by_kind.values()), **by_kind}
