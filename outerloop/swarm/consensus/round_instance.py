"""Parts of deciding a round that all protocols share: stored payloads, checks of a commit, and resignations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.effects import FetchPayloads, Reject
from outerloop.swarm.consensus.messages import Resigned
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.resignation import Resignation, Resignations
from outerloop.swarm.consensus.roster_change import shows_absences
from outerloop.swarm.consensus.round_state import RoundState
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.consensus.statements import StatementSigner
from outerloop.swarm.consensus.validity import certificate_error, commit_error
from outerloop.swarm.consensus.view_change import Pacemaker
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.validation import MAX_PEERS


@dataclass(frozen=True)
class Lacking:
    """Messages that the leader of a view still needs from other peers.

    kind      what the messages are, such as "accepts"
    arrived   how many the leader has, including its own
    needed    how many the leader must have, including its own
    silent    the peers from which no such message has arrived
    """

    kind: str
    arrived: int
    needed: int
    silent: frozenset[str]


class RoundInstance(Pacemaker):
    """One peer's part in deciding the current round. `stored`: round -> the payloads of that round on disk.

    The protocols are paxos/instance.py and hotstuff/replica.py.
    """

    byzantine: bool
    """Whether certificates of HotStuff-2 decide the rounds; otherwise those of Paxos (votes.CommitCertificate)."""

    def __init__(
        self,
        hard_state: HardState,
        *,
        signer: StatementSigner,
        soft_state: RoundState,
        gather_policy: GatherPolicy,
        absent_rounds: int,
        max_bytes: int,
        allowed: Callable[[str], bool],
    ) -> None:
        super().__init__(hard_state, signer, soft_state)
        self.stored: dict[int, frozenset[Participant]] = {}  # replaced as a whole, never modified
        self.gather_policy = gather_policy
        self._absent_rounds = absent_rounds
        self._max_bytes = max_bytes
        self._allowed = allowed
        self.leaving = False

    @property
    def payloads(self) -> frozenset[Participant]:
        """The payloads of the current round that are on disk."""
        return self.stored.get(self.number, frozenset())

    @property
    def countable(self) -> frozenset[Participant]:
        """The stored payloads of the round that this peer may count in its own commit: those of allowed peers."""
        return frozenset(participant for participant in self.payloads if self._allowed(participant.peer))

    @property
    def awaited(self) -> frozenset[str]:
        """The roster peers whose payloads this peer waits for, which excludes expelled and resigned peers."""
        return frozenset(filter(self._allowed, self.hard_state.remaining))

    @property
    def collects_reports(self) -> bool:
        """Return whether this peer, as the leader of a view, waits for the other peers' reports before it proposes."""
        return False

    def lacking(self) -> Lacking | None:
        """Return the messages for which this peer, as the leader, waits; None if it waits for payloads instead."""
        raise NotImplementedError

    def _lacks(self, kind: str, arrived: Iterable[str], needed: int) -> Lacking:
        """Return the state of a wait for `needed` messages. `arrived`: the peers from which a message has arrived."""
        remaining = self.hard_state.remaining
        silent = frozenset(remaining).difference(arrived, {self.hard_state.peer})
        return Lacking(kind, len(remaining) - len(silent), needed, silent)

    def _commit_error(self, commit: Commit, resignations: Resignations = ()) -> str:
        """Return why this cannot be the commit of the round, or "" if it can. All peers get the same result.

        `resignations`: valid ones to count in addition to those that this peer knows.
        """
        return commit_error(
            self.hard_state.with_resignations(resignations),
            commit,
            self.signer,
            min_peers=self.gather_policy.min_peers,
            absent_rounds=self._absent_rounds,
            max_bytes=self._max_bytes,
            quorum=self.quorum,
        )

    def _certificate_error(self, head: Commit, decided: CommitCertificate) -> str:
        """Return why `decided` does not prove that its commit was decided after `head`, or "" if it does."""
        if decided.byzantine != self.byzantine:
            return f"commit {decided.commit.number} was decided with another exchange.trust than this run's"
        return certificate_error(head, decided, self.signer)

    def _reject_commit(self, sender: str, commit: Commit, reason: str) -> None:
        """Reject a commit. If the local log is too short to show which peers were absent, request the sender's log."""
        short = not shows_absences(self.hard_state, commit.view, self._absent_rounds)
        self._effects.append(Reject(sender, reason, compare_logs=short))

    def _has_payloads(self, commit: Commit, holder: str) -> bool:
        """Return whether every payload of a commit is stored. Request missing payloads from `holder`, once per view."""
        missing = tuple(participant for participant in commit.participants if participant not in self.payloads)
        if not self.soft_state.wanted.issuperset(missing):
            self.soft_state = replace(self.soft_state, wanted=self.soft_state.wanted.union(missing))
            self._effects.append(FetchPayloads(self.number, missing, holder))
        return not missing

    # resignations (resignation.py)

    @property
    def waits_to_resign(self) -> bool:
        """Return whether this peer is leaving but has not resigned yet. It resigns in a round before it votes in it."""
        return self.leaving and self.votes and self._is_dispensable

    @property
    def _is_dispensable(self) -> bool:
        """Return whether the rounds can continue without this peer, according to the settings."""
        policy = self.gather_policy
        return policy.quorum != "all" and len(self.hard_state.remaining) > policy.min_peers

    def _resign(self) -> bool:
        """Resign if this peer leaves and has not voted in this round. Return whether it resigned."""
        if not self.waits_to_resign or self.hard_state.has_voted:
            return False
        number, head = self.number, self.hard_state.head.digest
        signature = self.signer.sign(statements.resign(number, head))
        own = Resignation(self.hard_state.peer, number, head, signature)
        self.hard_state = self.hard_state.with_resignations([own])
        self._send_resignations()
        return True

    def _send_resignations(self) -> None:
        """Send the resignations for this round, this peer's own included, to all peers of the roster."""
        resignations = self.hard_state.counted_resignations
        message = Resigned(self.number, self.hard_state.head.digest, resignations)
        self._save_and_send(self.hard_state.roster, message)

    def _receive_resignations(self, sender: str, resignations: Resignations) -> None:
        """Record resignations. If the remaining peers now are enough, enter the view that they want."""
        self._record_resignations(sender, resignations)
        if self.votes:
            self._receive_wishes(self.hard_state.peer, ())

    def _record_resignations(self, sender: str, resignations: Resignations) -> None:
        """Record the valid resignations of roster peers, and of `sender`, for rounds close to this one.

        Those for this round are always recorded, because a decided commit may depend on them. Of the others, only one
        per peer and round is recorded, and only while fewer than MAX_PEERS resignations are stored, so that liars
        cannot fill the disk.
        """
        peers = {*self.hard_state.roster, sender}
        for resignation in resignations:
            close = self.number - 1 <= resignation.number <= self.number + ROUNDS_KEPT
            if resignation.peer not in peers or not close or not self._has_room(resignation):
                continue
            if not self.signer.verify(resignation.peer, resignation.statement, resignation.signature):
                self._reject(sender, f"sent a resignation of {resignation.peer} without a valid signature")
                return
            self.hard_state = self.hard_state.with_resignations([resignation])

    def _has_room(self, resignation: Resignation) -> bool:
        """Return whether a resignation is new and may be stored in addition to the known ones."""
        known = self.hard_state.resignations
        if resignation.peer in self.hard_state.roster and resignation.covers(self.hard_state.head):
            return all(resignation.place != one.place for one in known)
        taken = any((resignation.peer, resignation.number) == (one.peer, one.number) for one in known)
        return not taken and len(known) < MAX_PEERS
