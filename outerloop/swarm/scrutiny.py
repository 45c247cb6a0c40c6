"""Why a peer turns down a commit that it is told of. Empty text: it does not."""

from __future__ import annotations

from typing import Protocol

from outerloop.swarm.ballots import Decided
from outerloop.swarm.commits import Commit, majority
from outerloop.swarm.fields import MAX_AMOUNT
from outerloop.swarm.memory import Memory


class Notary(Protocol):
    """What the agreement, which knows no keys, needs of them."""

    def sign(self, number: int, view: int, digest: bytes) -> bytes:
        """64 bytes: this peer accepts a commit of this round in this view; the same for the same."""
        ...

    def right(self, peer: str, number: int, view: int, digest: bytes, signature: bytes) -> bool:
        """Whether a peer (its name) has signed that."""
        ...


def objection(memory: Memory, commit: Commit, *, min_peers: int, most_bytes: int = MAX_AMOUNT) -> str:
    """Why a commit cannot be the one of the round at hand, decided or not. `most_bytes`: of one payload."""
    present = {one.peer for one in commit.participants}
    if commit.parent != memory.head.digest:
        return f"commit {commit.number} follows another head: its history is not this one"
    if len(present) < min_peers:
        return f"commit {commit.number} has {len(present)} participants, fewer than min_peers={min_peers}"
    if not present & set(memory.roster) <= set(commit.roster):
        return f"commit {commit.number} drops peers that take part in it from the next roster"
    if entering := set(commit.roster) - set(memory.roster) - present:
        return f"commit {commit.number} lets in {min(entering)}, whose payload it does not count"
    if large := [one for one in commit.participants if one.size_bytes > most_bytes]:
        sizes = ", ".join(f"{one.size_bytes} bytes of {one.peer}" for one in large)
        return f"commit {commit.number} has too large a payload: {sizes}, where {most_bytes} are allowed"
    return ""


def doubt(roster: tuple[str, ...], decided: Decided, notary: Notary) -> str:
    """Why a commit is not known to be decided: too few of the roster that decides its round have signed that."""
    signed = {peer: signature for peer, signature in decided.accepts if peer in roster}
    where = decided.commit.number, decided.view, decided.commit.digest
    acceptors = [peer for peer, signature in signed.items() if notary.right(peer, *where, signature)]
    if len(acceptors) < majority(roster):
        return f"commit {decided.commit.number} has accepts of {len(acceptors)} of {len(roster)} peers, no majority"
    return ""
