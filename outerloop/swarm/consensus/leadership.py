"""The leader of each view: all peers in turn, and last those whose views have failed.

    order of round r    the roster by sha256 of (run, round, peer), a different order in each round; then the demoted
                        peers, in the order of their demotion. View v is led by the peer at place v mod n
    demoted by r        a commit that was first proposed in view v shows that views 0 .. v - 1 failed: their leaders
                        join the end of the list. The peer that led view v leaves it, as do peers that leave the roster
    at most             the latest (n - 1) // 2 are kept, so more than half of the roster always leads in turn

A silent leader costs its timeout once instead of in every round that it would lead. The list is part of each commit and
recomputed by every acceptor (validity.py), so all peers derive the same leaders from the head of the chain alone, a
newcomer that holds one commit included. A view fails only if a majority wants the next one, so a minority of liars
cannot demote any peer by itself. A demoted honest peer loses nothing but the work of leading.

This is the leader reputation of Carousel (Cohen et al., "Be Aware of Your Leaders", FC 2022, arXiv 2110.00960) with
failed views in place of missing votes.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgpack

from outerloop.swarm.consensus.commit import Commit, minority


def leader(run: str, head: Commit, view: int) -> str:
    """Return the leader of a view of the round after `head`."""
    order = turns(run, head.number + 1, head.roster, head.demoted)
    return order[view % len(order)]


@lru_cache(maxsize=64)
def turns(run: str, number: int, roster: tuple[str, ...], demoted: tuple[str, ...] = ()) -> list[str]:
    """Return the roster of round `number` in the order in which its peers lead."""

    def place(peer: str) -> tuple[int, bytes]:
        failed = demoted.index(peer) if peer in demoted else -1
        return failed, hashlib.sha256(msgpack.packb([run, number, peer])).digest()

    return sorted(roster, key=place)


def next_demoted(run: str, head: Commit, view: int, roster: tuple[str, ...]) -> tuple[str, ...]:
    """Return the demoted peers of the commit after `head`, first proposed in `view`, which names the next `roster`."""
    order = turns(run, head.number + 1, head.roster, head.demoted)
    proposer, failed = order[view % len(order)], order[:view]
    listed = [peer for peer in head.demoted if peer not in failed] + failed
    staying = [peer for peer in listed if peer in roster and peer != proposer]
    return tuple(staying[max(0, len(staying) - minority(roster)) :])
