"""Whom a peer may meet in a gossip round, and when two rounds fit each other. Names of peers are their peer ids.

RandomPartners     anybody who is ready with the same fragment, but not again one of the last few partners: peers of
             equal speed that met once would be ready together again, and meet for ever
ScheduledPartners  one partner a round, from a deal that all know: for runs that shall come out the same again
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Protocol

from outerloop.gossip_groups import group_of
from outerloop.types import Round

REMEMBERED = 3


class Partners(Protocol):
    """Who comes into question."""

    def of(self, round: Round) -> Sequence[str]:
        """The peers that this one may meet in a round of its own; none: it takes a solo step."""
        ...

    def fit(self, own: Round, theirs: Round) -> bool:
        """Whether two peers in these rounds may meet."""
        ...

    def preferred(self, ready: Collection[str], *, around: int) -> list[str]:
        """Those of `ready` that it would rather meet, in order of ids. `around`: how many others were heard lately."""
        ...

    def met(self, peer: str) -> None:
        """Remember a partner."""
        ...


class RandomPartners:
    """`others`: all peers but this one. Half of those around always stay to draw from, so of few fewer are left out."""

    def __init__(self, others: Sequence[str]) -> None:
        self._others = sorted(others)
        self._recent: deque[str] = deque(maxlen=REMEMBERED)

    def of(self, round: Round) -> Sequence[str]:
        return self._others

    def fit(self, own: Round, theirs: Round) -> bool:
        return own.fragment == theirs.fragment

    def preferred(self, ready: Collection[str], *, around: int) -> list[str]:
        left_out = list(self._recent)[-min(REMEMBERED, around // 2) :] if around > 1 else []
        return sorted(set(ready) - set(left_out))

    def met(self, peer: str) -> None:
        self._recent.append(peer)


class ScheduledPartners:
    """`peers`: all, this one included, in the order of ranks; `seed` is equal on all of them."""

    def __init__(self, peers: Sequence[str], own: str, *, seed: int) -> None:
        self._peers = list(peers)
        self._rank = self._peers.index(own)
        self._seed = seed

    def of(self, round: Round) -> Sequence[str]:
        pair = group_of(self._rank, size=len(self._peers), group=2, seed=self._seed, round=round)
        return [self._peers[rank] for rank in pair if rank != self._rank]

    def fit(self, own: Round, theirs: Round) -> bool:
        return own == theirs

    def preferred(self, ready: Collection[str], *, around: int) -> list[str]:
        return sorted(ready)

    def met(self, peer: str) -> None:
        pass
