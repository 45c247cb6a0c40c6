"""Policies for choosing partners: which peers a peer may meet in a gossip round, and whether their rounds match.

RandomPartners     Any peer that is ready to exchange the same fragment, except the last few partners. Without this
                   exception, two peers of equal speed that met once would become ready together and keep meeting.
ScheduledPartners  One partner per round, from a schedule that all peers know; for reproducible runs.

Peers are identified by their peer ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Protocol

from outerloop.gossip_groups import group_of
from outerloop.types import Round

REMEMBERED = 3


class Partners(Protocol):
    """A policy for choosing partners."""

    def of(self, round: Round) -> Sequence[str]:
        """Return the peers that this peer may meet in its round `round`, or [] if it must take a solo step."""
        ...

    def fit(self, own: Round, theirs: Round) -> bool:
        """Return whether a peer in round `own` may meet a peer in round `theirs`."""
        ...

    def preferred(self, ready: Collection[str], *, around: int) -> list[str]:
        """Return the preferred peers among `ready`, sorted by id. `around`: number of other peers seen recently."""
        ...

    def met(self, peer: str) -> None:
        """Record that this peer has met the partner `peer`."""
        ...


class RandomPartners:
    """Allows any ready peer except the last REMEMBERED partners. `others`: all peers except this one.

    If few peers were seen recently, fewer partners are left out, so that at least half of those peers can be drawn.
    """

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
    """Allows one partner per round, from random pairs that all peers draw with the same seed.

    `peers`: all peers, in the order of ranks. `own`: this peer. `seed`: must be equal on all peers.
    """

    def __init__(self, peers: Sequence[str], own: str, *, seed: int) -> None:
        self._peers = list(peers)
        self._rank = self._peers.index(own)
        self._seed = seed

    def of(self, round: Round) -> Sequence[str]:
        pair = group_of(self._rank, size=len(self._peers), group=2, seed=self._seed, round_id=round)
        return [self._peers[rank] for rank in pair if rank != self._rank]

    def fit(self, own: Round, theirs: Round) -> bool:
        return own == theirs

    def preferred(self, ready: Collection[str], *, around: int) -> list[str]:
        return sorted(ready)

    def met(self, peer: str) -> None:
        pass
