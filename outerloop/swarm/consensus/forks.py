"""Forks: find where two chains of one run diverge, and switch to the chain that all peers continue.

A round is decided by a majority of its roster, two majorities share a peer, and an honest peer votes once. So a round
that is decided twice proves that a peer lied. Both certificates are checked (validity.certificate_error), their
signatures are recorded as evidence (equivocation.py), and the peer that lied is expelled. Then all peers continue the
chain that is better in the first round in which the chains differ: the commit that was first proposed in the lower view
is better; if the views are equal, the commit with the smaller digest. The length of the chains is irrelevant.

View and digest are part of the commit, and do not depend on its certificate. So the rule strictly orders the commits of
a round and, by the first round that differs, the chains: all peers choose the same chain, and no peer returns to a
chain that it has left. The choice requires logs that reach back to the fork. `forked_earlier` detects logs that do not:
they show that two chains exist, but neither which chain is better nor which peer lied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.effects import ChainLeft, Effect
from outerloop.swarm.consensus.round_instance import RoundInstance
from outerloop.swarm.consensus.votes import CommitCertificate, digests, linked


class ForkPoint(NamedTuple):
    """The last common commit, `base`, and the next round's commit on this peer's chain and on the other chain."""

    base: CommitCertificate
    own: CommitCertificate
    other: CommitCertificate


def fork_point(ours: Sequence[CommitCertificate], theirs: Sequence[CommitCertificate]) -> ForkPoint | None:
    """Return the point at which two linked logs diverge.

    Return None if the logs do not show that point, because they agree on all common rounds, or because neither log
    contains the last common commit.
    """
    left = {decided.commit.number: decided for decided in ours}
    right = {decided.commit.number: decided for decided in theirs}
    for number in sorted(left.keys() & right.keys()):
        own, other, base = left[number], right[number], left.get(number - 1) or right.get(number - 1)
        if own.commit.digest != other.commit.digest:
            shared = base and own.commit.parent == other.commit.parent == base.commit.digest
            return ForkPoint(base, own, other) if base and shared else None
    return None


def forked_earlier(ours: Sequence[CommitCertificate], theirs: Sequence[CommitCertificate]) -> bool:
    """Return whether two linked logs belong to different chains but do not show where the chains diverge."""
    left, right = digests(ours), digests(theirs)
    differ = any(left[number] != right[number] for number in left.keys() & right.keys())
    return differ and fork_point(ours, theirs) is None


def is_better(commit: Commit, other: Commit) -> bool:
    """Return whether peers must prefer `commit` to `other`, a commit of the same round with the same parent."""
    return (commit.view, commit.digest) < (other.view, other.digest)


class ForkResolver(RoundInstance):
    """A state machine that compares this peer's log with the logs of other peers, and switches to a better chain."""

    def compare_log(self, sender: str, log: Sequence[CommitCertificate]) -> list[Effect]:
        """Compare a peer's untrusted log with this peer's log. Switch to the other chain if it is better (forks.py).

        If both logs belong to the same chain, and the sender's log reaches further back, prepend its earlier commits
        to this peer's log. This peer's log then shows which peers were absent from those commits.
        """
        if not linked(log):
            self._reject(sender, "sends commits that do not follow one another")
        elif found := fork_point(self.hard_state.log, log):
            self._resolve_fork(sender, found, log)
        elif forked_earlier(self.hard_state.log, log):
            first = max(self.hard_state.log[0].commit.number, log[0].commit.number)
            reason = f"its history diverged before commit {first}, earlier than the logs reach: these are two runs"
            self._reject(sender, f"{reason}. To merge them, restart the workers of one run as new peers of the other")
        else:
            self._extend_log_back(log)
        return self._step()

    def _step(self) -> list[Effect]:
        """Take every step that has become possible, and return the effects to carry out."""
        raise NotImplementedError

    def _learn(self, sender: str, decided: CommitCertificate) -> None:
        """Apply a decided commit if it is the next one and valid."""
        raise NotImplementedError

    def _resolve_fork(self, sender: str, found: ForkPoint, log: Sequence[CommitCertificate]) -> None:
        """Switch to the other chain if it is better. Verify both certificates to detect peers that signed both."""
        base, own, other = found
        errors = [self._certificate_error(base.commit, decided) for decided in (own, other)]
        if errors[1]:
            self._reject(sender, errors[1])
        elif is_better(other.commit, own.commit):
            self._switch_chain(sender, base, [decided for decided in log if decided.commit.number > base.commit.number])

    def _switch_chain(self, sender: str, base: CommitCertificate, log: Sequence[CommitCertificate]) -> None:
        """Roll back to `base`, the last common commit, and apply `log`, whose first certificate has been verified.

        If the first commit of `log` is invalid, nothing changes. If `base` comes from the sender's log, its certificate
        is not kept, because it cannot be verified.
        """
        base = base if base in self.hard_state.log else CommitCertificate.unproven(base.commit)
        ours, self.hard_state = self.hard_state, self.hard_state.rolled_back_to(base)
        self._record_resignations(sender, log[0].resignations)
        if reason := self._commit_error(log[0].commit):
            self.hard_state = ours
            self._reject(sender, reason)
            return
        self._effects.append(ChainLeft(self.number))
        for decided in log:
            self._learn(sender, decided)

    def _extend_log_back(self, log: Sequence[CommitCertificate]) -> None:
        """Prepend the commits that precede this peer's log, if their digests and certificates prove them.

        The certificate of the oldest one cannot be verified without the commit before it. So it is not kept; the digest
        in the next commit proves this one.
        """
        first = self.hard_state.log[0].commit
        earlier = [decided for decided in log if decided.commit.number < first.number]
        errors = (self._certificate_error(before.commit, decided) for before, decided in pairwise(earlier))
        if earlier and earlier[-1].commit.digest == first.parent and not any(errors):
            oldest = CommitCertificate.unproven(earlier[0].commit)
            self.hard_state = self.hard_state.with_earlier_commits([oldest, *earlier[1:]])
