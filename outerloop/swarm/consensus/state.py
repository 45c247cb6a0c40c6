"""The hard state of one peer: what it must still know after a crash. The volatile rest is in round_state.py.

It consists of the last commits, the peer's last promise, and the proposal that it accepted last. It is stored next to
the peer's identity, and both are kept or lost together: a peer that lost its hard state might vote twice, so it must
return under a new identity. The payloads that an accepted commit names must survive a crash as well (chain.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from outerloop.swarm.consensus.commit import Commit, genesis, leader
from outerloop.swarm.consensus.hotstuff.votes import Lock, Proposal
from outerloop.swarm.consensus.resignation import Resignation, Resignations, remaining_peers
from outerloop.swarm.consensus.votes import Accepted, CommitCertificate, digests
from outerloop.swarm.validation import (
    MAX_NUMBER,
    MalformedMessage,
    checked_int,
    digest,
    fields,
    items,
    peer_id,
    quote,
    row,
    unpacked,
    view_number,
)

VERSION = 7
WITHOUT_RESIGNATIONS = 6
"""The format version without the field `resignations`. Files of this version can still be read."""
HARD_STATE = ("version", "run", "peer", "log", "promised", "accepted", "lock", "left")
ROUNDS_KEPT = 8
"""Maximum number of commits in a log. A peer that lacks more commits cannot replay them: it must download the state."""


@dataclass(frozen=True)
class HardState:
    """One peer's durable consensus state. It is immutable: every change creates a new instance.

    log         the last commits; the last one is the head
    promised    the current view; proposals of earlier views are no longer accepted
    accepted    the last proposal that this peer has accepted, or None; with HotStuff-2, the last one it voted for
    lock        the commit on which this peer is locked in HotStuff-2 (hotstuff/__init__.py), or None
    left        (number, digest) of each commit that this peer has rolled back (forks.py) and that may become its head
                again. The peer does not vote in the round after such a commit, because it no longer knows its votes
    resignations    the resignations of peers, possibly of this peer too, for recent rounds (resignation.py), sorted

    `promised`, `accepted` and `lock` refer to the round after the head.
    """

    session: str
    peer: str
    log: tuple[CommitCertificate, ...]
    promised: int = 0
    accepted: Accepted | Proposal | None = None
    lock: Lock | None = None
    left: frozenset[tuple[int, bytes]] = frozenset()
    resignations: Resignations = ()

    @staticmethod
    def first(*, session: str, peer: str, roster: Iterable[str], number: int = 0) -> HardState:
        """Return the initial state of a peer that takes part from the first round of a chain, round `number`."""
        return HardState(session, peer, (CommitCertificate(genesis(session, roster, first=number), 0, ()),))

    @staticmethod
    def joining(*, session: str, peer: str, head: CommitCertificate) -> HardState:
        """Return the initial state of a late joiner that downloads the run's state as of `head`.

        Raises ValueError if the peer is in the roster of that commit, because the others may count on its votes.
        """
        if peer in head.commit.roster:
            raise ValueError(
                f"{peer} is in the roster of commit {head.commit.number} but has no saved state: it can join after a"
                " commit that drops it"
            )
        return HardState(session, peer, (head,))

    @property
    def head(self) -> Commit:
        return self.log[-1].commit

    def digest_before(self, number: int) -> bytes:
        """Return the digest of the commit before round `number`, or b"" if the log does not reach it."""
        return digests(self.log).get(number - 1, b"")

    @property
    def number(self) -> int:
        """The round that is to be decided next."""
        return self.head.number + 1

    @property
    def roster(self) -> tuple[str, ...]:
        """The peers that decide this round."""
        return self.head.roster

    @property
    def counted_resignations(self) -> Resignations:
        """The known resignations for this round: those of roster peers that do not vote in it."""
        roster = set(self.roster)
        return tuple(one for one in self.resignations if one.peer in roster and one.covers(self.head))

    @property
    def remaining(self) -> tuple[str, ...]:
        """The peers of the roster that have not resigned. A quorum of them decides the round."""
        return self.counted_peers(())

    def counted_peers(self, voters: Collection[str]) -> tuple[str, ...]:
        """Return the roster peers of whom `voters` must be a quorum: those that have not resigned, and the voters."""
        return remaining_peers(self.head, self.resignations, voters=voters) if self.resignations else self.roster

    @property
    def resigned(self) -> frozenset[str]:
        """The peers of the roster that have resigned."""
        return frozenset(self.roster).difference(self.remaining)

    @property
    def votes(self) -> bool:
        """Return whether this peer votes in the round.

        It must be in the roster, must not have resigned, and must still know its earlier votes.
        """
        return self.peer in self.remaining and (self.head.number, self.head.digest) not in self.left

    @property
    def has_voted(self) -> bool:
        """Return whether this peer has signed a promise or a vote in this round."""
        return self.promised > 0 or self.accepted is not None or self.lock is not None

    def leader(self, view: int) -> str:
        return leader(self.session, self.head, view)

    def belongs_to(self, *, byzantine: bool) -> bool:
        """Return whether all saved votes and certificates are of HotStuff-2 if `byzantine`, else of Paxos."""
        kinds = {decided.byzantine for decided in self.log if decided.accepts}
        if self.accepted is not None:
            kinds.add(isinstance(self.accepted, Proposal))
        return kinds <= {byzantine}

    def learned(self, decided: CommitCertificate) -> HardState:
        """Return the state with the next commit, `decided`, appended to the log as the new head."""
        assert decided.commit.number == self.number and decided.commit.parent == self.head.digest
        return self._after((*self.log, decided)[-ROUNDS_KEPT:])

    def rolled_back_to(self, base: CommitCertificate) -> HardState:
        """Return the state rolled back to `base`, a commit in the log. Drop later commits and this round's votes."""
        kept = tuple(decided for decided in self.log if decided.commit.number < base.commit.number)
        after = {
            (decided.commit.number, decided.commit.digest)
            for decided in self.log
            if decided.commit.number > base.commit.number
        }
        return HardState(self.session, self.peer, (*kept, base), left=self.left | after, resignations=self.resignations)

    def moved_to(self, decided: CommitCertificate) -> HardState:
        """Return the state with a later commit as the head. The peer downloads the run's state as of that commit."""
        assert decided.commit.number >= self.number
        return self._after((decided,))

    def with_earlier_commits(self, log: Iterable[CommitCertificate]) -> HardState:
        """Return the state with earlier commits prepended to the log. The log keeps its last ROUNDS_KEPT commits."""
        return replace(self, log=(*log, *self.log)[-ROUNDS_KEPT:])

    def with_resignations(self, resignations: Iterable[Resignation]) -> HardState:
        """Return the state with more resignations. Only the first one is kept per peer, round and head."""
        known = {one.place for one in self.resignations}
        new = {one.place: one for one in resignations if one.place not in known}
        return replace(self, resignations=tuple(sorted((*self.resignations, *new.values())))) if new else self

    def _after(self, log: tuple[CommitCertificate, ...]) -> HardState:
        """Return the state with another log, and without promises and votes.

        Commits in `left` that precede the new head are dropped, because they cannot become the head again. Resignations
        for rounds more than ROUNDS_KEPT before the new head are dropped, because no switch to another chain can lead
        back to these rounds.
        """
        head = log[-1].commit.number
        left = frozenset((number, sha256) for number, sha256 in self.left if number >= head)
        resignations = tuple(one for one in self.resignations if one.number >= head - ROUNDS_KEPT)
        return HardState(self.session, self.peer, log, left=left, resignations=resignations)

    def to_bytes(self) -> bytes:
        return msgpack.packb(
            {
                "version": VERSION,
                "run": self.session,
                "peer": self.peer,
                "log": [decided.to_map() for decided in self.log],
                "promised": self.promised,
                "accepted": self.accepted.to_map() if self.accepted else None,
                "lock": self.lock.to_map() if self.lock else None,
                "left": sorted(self.left),
                "resignations": self.resignations,
            }
        )

    @staticmethod
    def from_bytes(content: bytes, *, session: str, peer: str) -> HardState:
        """Parse a saved state.

        Raises MalformedMessage if it is damaged, has another format version, or belongs to another session or peer.
        """
        value = unpacked(content, "the hard state")
        older = isinstance(value, dict) and value.get("version") == WITHOUT_RESIGNATIONS
        found = fields(value, "the hard state", HARD_STATE if older else (*HARD_STATE, "resignations"))
        if not older:
            checked_int(found["version"], "the hard state's version", minimum=VERSION, maximum=VERSION)
        if (found["run"], peer_id(found["peer"], "the hard state's peer")) != (session, peer):
            raise MalformedMessage(
                f"this hard state belongs to peer {found['peer']} in session {found['run']}, not to {peer} in {session}"
            )
        promised = view_number(found["promised"], "the promised view")
        lock = None if found["lock"] is None else Lock.from_map(found["lock"])
        resignations = () if older else _resignations(found["resignations"])
        return HardState(
            session,
            peer,
            _log(found["log"]),
            promised,
            _accepted(found["accepted"]),
            lock,
            _left(found["left"]),
            resignations,
        )


def _accepted(value: Any) -> Accepted | Proposal | None:
    if value is None:
        return None
    return Proposal.from_map(value) if isinstance(value, dict) and "signature" in value else Accepted.from_map(value)


def _log(value: Any) -> tuple[CommitCertificate, ...]:
    log: list[CommitCertificate] = []
    for item in items(value, "the log", minimum=1):
        decided = CommitCertificate.from_map(item)
        if log and decided.commit.parent != log[-1].commit.digest:
            raise MalformedMessage(f"commit {decided.commit.number} does not follow the previous commit in the log")
        log.append(decided)
    return tuple(log)


def _resignations(value: Any) -> Resignations:
    """Parse the stored resignations, from several rounds and chains. There may be more than a message may contain."""
    if type(value) is not list:
        raise MalformedMessage(f"the stored resignations must be a list; got {quote(value)}")
    return tuple(map(Resignation.from_list, value))


def _left(value: Any) -> frozenset[tuple[int, bytes]]:
    what = "a rolled-back commit must be [number, sha256]"
    rows = [row(item, 2, what) for item in items(value, "the rolled-back commits")]
    return frozenset(
        (checked_int(number, "the number of a rolled-back commit", maximum=MAX_NUMBER), digest(sha256, "its sha256"))
        for number, sha256 in rows
    )
