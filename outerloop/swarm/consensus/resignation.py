"""Resignations: a peer that leaves gives up its votes in a signed statement, so that the other peers need not wait.

A roster of two needs both votes. Without the vote of a peer that has left, such a roster could not even decide the
commit that drops this peer. So a peer that leaves signs the statement (statements.resign):

    in round r after commit h, and in the round after it, I have not voted and will not vote

    sign      A peer signs the statement for its current round r, and only if it has signed no promise and no vote in
              this round; otherwise, it keeps voting until the round is decided. The statement is on disk before it is
              sent (state.HardState), so the peer does not vote in these two rounds after a crash or a restart either.
              A peer does not resign if fewer than min_peers peers would remain. It does not resign with quorum "all"
              either, because the others then have to wait for it in any case (round_instance.py)
    quorum    If k of the n peers of a roster have resigned, a round is decided by more than half (Paxos) or more than
              two thirds (HotStuff-2) of the n - k others. A certificate contains the resignations that it counts. If a
              certificate contains both a vote and a resignation of a liar, the vote counts and the resignation does
              not. So a valid certificate remains valid when a peer learns of more resignations
    leave     A commit drops the peers that have resigned if enough others take part in it (roster_change.py).
              Before a peer stores a certificate in its log, it adds all resignations for that round that it knows. A
              leader that lies may have left out the one that explains why the next roster lacks a peer. Without it,
              peers that do not know it would reject the commit

The statement covers two rounds, because a leader may already have proposed a commit of round r that does not drop the
peer. That commit is decided without the peer, and the commit of round r + 1 drops it. The statement covers no later
round. If the peer returns, commit r + 1 is the earliest one that can admit it again. It then votes in round r + 2, and
its old resignation no longer matters. The statement names the session, the round and the digest of commit h, so it is
not valid in another session or on another chain.

Why no two commits of a round are decided. Let R be the peers of the roster that have resigned for this round, and V the
others. Peers may know different subsets of R. With Paxos, a quorum that counts k resignations consists of more than
(n - k) / 2 peers. This is at least half of V, because V has at most n - k peers. None of the voters is in R, because
the peers in R cast no vote in this round. So all quorums of the round, whichever resignations they count, are
majorities of V, and two of them share a peer. The rest of the argument (chain.py) does not change.

With HotStuff-2, f liars may resign and vote nevertheless. Let h of the resigned peers be honest. Suppose that a quorum
counts k resignations, and that l of these are from liars. It has more than 2 (n - k) / 3 votes, and none of them is
from these l liars. So more than 2 (n - k) / 3 - (f - l) of its voters are honest; this number is at least
2 (n - h) / 3 - f. Only n - f - h honest peers vote, so two quorums share an honest one if
4 (n - h) / 3 - 2 f >= n - f - h, that is, if 3 f <= n - h. So HotStuff-2 is safe if the liars are at most a third of
the peers that remain without the honest resigned ones. The protocol assumes more of the next roster: that fewer than a
third of its peers lie.

A peer that resigned and votes in the same round nevertheless is convicted by its two statements
(accountability/evidence.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.statements import Statement, StatementSigner
from outerloop.swarm.validation import MAX_NUMBER, MalformedMessage, checked_int, digest, items, peer_id, row, signature


class Resignation(NamedTuple):
    """A peer's signed statement that it does not vote in round `number` after commit `head`, nor in the next round."""

    peer: str
    number: int
    head: bytes
    signature: bytes

    @property
    def place(self) -> tuple[str, int, bytes]:
        """Return what the signature covers. Two resignations with the same place differ only in their signatures."""
        return self.peer, self.number, self.head

    @property
    def statement(self) -> Statement:
        return statements.resign(self.number, self.head)

    def covers(self, head: Commit) -> bool:
        """Return whether this resignation covers the round after commit `head`."""
        return (self.number, self.head) in ((head.number + 1, head.digest), (head.number, head.parent))

    @staticmethod
    def from_list(value: Any) -> Resignation:
        """Parse a resignation that a peer sent. Raises MalformedMessage if it is malformed."""
        peer, number, head, signed = row(value, 4, "a resignation must be [peer, round, head, signature]")
        return Resignation(
            peer_id(peer, "the peer of a resignation"),
            checked_int(number, "the round of a resignation", maximum=MAX_NUMBER),
            digest(head, "the head of a resignation"),
            signature(signed, "the signature of a resignation"),
        )


Resignations = tuple[Resignation, ...]


def parse_resignations(value: Any) -> Resignations:
    """Parse a list of resignations. Raises MalformedMessage unless peers and rounds are in order and unique."""
    found = tuple(Resignation.from_list(item) for item in items(value, "resignations"))
    keys = [(resignation.peer, resignation.number) for resignation in found]
    if keys != sorted(set(keys)):
        raise MalformedMessage("resignations must be sorted by peer and round, with at most one per peer and round")
    return found


def remaining_peers(
    head: Commit, resignations: Iterable[Resignation], *, voters: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the roster peers of whom a quorum decides the round after commit `head`.

    These are the peers that have not resigned. If `voters` are given, these are included even if they have resigned.
    Signatures are not verified.
    """
    resigned = {resignation.peer for resignation in resignations if resignation.covers(head)}.difference(voters)
    return tuple(peer for peer in head.roster if peer not in resigned)


def resignation_error(head: Commit, resignations: Resignations, signer: StatementSigner) -> str:
    """Return why one of the resignations is not valid for the round after `head`, or "" if all are valid."""
    for resignation in resignations:
        peer = resignation.peer
        if peer not in head.roster or not resignation.covers(head):
            return f"counts a resignation of {peer} that is not about commit {head.number + 1}"
        if not signer.verify(peer, resignation.statement, resignation.signature):
            return f"counts a resignation of {peer} without a valid signature"
    return ""
