"""Define which peers are audited after a round, in which window, and by whom. All peers compute this from the commit.

    h          = SHA-256(DOMAIN | commit | peer),  r_k = h[8 k : 8 k + 8] as a big-endian integer
    audited    if r_0 < q · 2^64                    q: exchange.audit
    window     r_1 mod n                            n: number of windows of the peer's round (leaves.py)
    auditors   the first AUDITORS other participants of the same machine class, in the order of
               SHA-256(DOMAIN | commit | peer | auditor)

In these formulas, | is concatenation, commit is the digest of the round's commit (32 bytes), and peers are ids in
UTF-8. A commit's digest covers the payloads of all participants, and so the roots of their leaves. A peer must choose
its leaves before this digest is known, so it cannot know then which windows will be picked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from outerloop.swarm.audit.leaves import Header
from outerloop.swarm.validation import id_of

DOMAIN = b"outerloop/1/audit\n"
AUDITORS = 2
"""Number of auditors of an audited peer: one that replays, and one that repeats the replay if a leaf differs."""


@dataclass(frozen=True)
class Pick:
    """An audit that a commit demands.

    number     the round
    commit     digest of the round's commit
    peer       name of the audited peer
    header     the header of its payload
    window     the window to replay
    auditors   names of the auditors, at most AUDITORS; empty if no other participant has the same machine class
    """

    number: int
    commit: bytes
    peer: str
    header: Header
    window: int
    auditors: tuple[str, ...]


def picks(number: int, commit: bytes, headers: Mapping[str, Header], *, probability: float) -> dict[str, Pick]:
    """Return the audits that the commit of round `number` demands, by name of the audited peer.

    `headers`: name of each participant -> header of its payload.
    """
    found = {}
    for peer, header in headers.items():
        drawn = _hash(commit, peer)
        if int.from_bytes(drawn[:8], "big") < probability * 2**64:
            window = int.from_bytes(drawn[8:16], "big") % max(1, header.leaves - 1)
            found[peer] = Pick(number, commit, peer, header, window, _auditors(commit, peer, headers))
    return found


def _auditors(commit: bytes, peer: str, headers: Mapping[str, Header]) -> tuple[str, ...]:
    same = [other for other in headers if other != peer and headers[other].machine == headers[peer].machine]
    return tuple(sorted(same, key=lambda other: _hash(commit, peer, other))[:AUDITORS])


def _hash(commit: bytes, *peers: str) -> bytes:
    return hashlib.sha256(DOMAIN + commit + b"".join(id_of(peer).encode() for peer in peers)).digest()
