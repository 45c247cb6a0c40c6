"""Detect equivocation: two recent statements of one peer that contradict each other.

Each statement whose signature this peer has verified for another purpose is compared with the few statements that it
could contradict. This module neither verifies nor creates signatures.

This module also detects a rollback of this peer itself: its disk was reset to a snapshot, so its hard state (the record
of its votes) is older than its votes. The check at the start (hard_state_file.py) compares only which process wrote the
hard state last, so it misses a snapshot taken while that process ran. But a vote is on disk before any other peer
receives it. So if the hard state lacks a vote that this peer has signed, the vote was cast after the snapshot. A vote
is missing from the hard state if it is one of these:

    accept     for the current round, in a later view than the accept on disk
    promise    for the current round, for a later view than the promise on disk
    prepare    for the current round, in a later view than the prepare vote on disk (hotstuff/)
    commit     for the current round, in a later view than the view of the lock on disk (hotstuff/)
    resign     for the current round or the one before
    any        for a round after the current one

A peer that has left a chain for another one (forks.py, HardState.left) discards its votes on the old chain on purpose,
so no rollback is reported until its rounds have passed the height of the old chain. A rollback is detected only if
another peer presents such a vote. If two of three peers are reset together while the third is away, they may vote twice
undetected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import cast

from outerloop.swarm.access.signatures import Field
from outerloop.swarm.accountability.contradictions import comparable, contradiction
from outerloop.swarm.accountability.evidence import Evidence
from outerloop.swarm.accountability.signed_statement import ACCEPT, COMMIT, PAYLOAD, PREPARE, PROMISE, RESIGN, Signed
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.consensus.statements import Statement


def forgotten(hard_state: HardState, context: str, session: str | bytes, fields: Sequence[Field]) -> str:
    """Return a description of the vote in `fields` if this peer cast it but `hard_state` lacks it, else "".

    `context`, `session` and `fields` are those passed to Signatures.witness.
    """
    if session != hard_state.session or context not in KEPT or fields[0] != hard_state.peer or hard_state.left:
        return ""
    if context == RESIGN:
        return _forgotten_resignation(hard_state, *cast(tuple[int, bytes], fields[1:3]))
    number, head, view = cast(tuple[int, bytes, int], fields[1:4])
    if number > hard_state.number:
        is_held = False
    else:
        is_held = number < hard_state.number or head != hard_state.head.digest or view <= _held(hard_state, context)
    return (
        "" if is_held else f"has voted in view {view} of commit {number}, but the record of its votes lacks this vote"
    )


def _forgotten_resignation(hard_state: HardState, number: int, head: bytes) -> str:
    held = [one.number for one in hard_state.resignations if one.peer == hard_state.peer and one.head == head]
    if number < hard_state.number - 1 or number in held:
        return ""
    return f"has resigned for commit {number}, but the record of its votes lacks this"


def _held(hard_state: HardState, context: str) -> int:
    """Return the latest view for which the hard state holds a vote of the kind `context`, or -1 if there is none."""
    if context == PROMISE:
        return hard_state.promised
    if context == COMMIT:
        return hard_state.lock.view if hard_state.lock else -1
    return hard_state.accepted.view if hard_state.accepted else -1


VIEWS_KEPT = 64
"""Maximum number of statements kept per peer, kind and round: those of the latest views. An honest peer passes through
only a few views per round."""
Place = tuple[int, bytes]
VOTES = (ACCEPT, PROMISE, PREPARE, COMMIT)
KEPT = (*VOTES, RESIGN)
"""The kinds of statements that a peer records on disk before it sends them."""
KINDS = (*KEPT, PAYLOAD)


class EquivocationWatch:
    """Records the recent statements in one session, and detects contradictions between them.

    Keeps one statement per peer, kind, round, view and head, for rounds close to the current round.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self._number = 0
        self._statements: dict[int, dict[tuple[str, str], dict[Place, Signed]]] = defaultdict(lambda: defaultdict(dict))

    def begin(self, number: int) -> None:
        """Set the current round, and drop statements about rounds that are far from it."""
        self._number = number
        for old in [known for known in self._statements if not self._is_close(known)]:
            del self._statements[old]

    def saw(self, peer: str, statement: Statement, signature: bytes) -> Evidence | None:
        """Record a statement signed by `peer` (a name). Return evidence if it contradicts an earlier one, else None."""
        context, number = str(statement[0]), int(statement[1])
        if context not in KINDS or not self._is_close(number):
            return None
        signed, of_round = Signed(statement, signature), self._statements[number]
        for other in self._comparable(of_round, peer, context):
            if contradiction(statement, other.statement):
                return Evidence.of(self._session, peer, signed, other)
        kept = of_round[peer, context]
        kept.setdefault(place_of(statement), signed)
        if len(kept) > VIEWS_KEPT:
            del kept[min(kept)]
        return None

    def heard(self, context: str, run: str | bytes, fields: tuple[Field, ...], signature: bytes) -> Evidence | None:
        """Record a verified signature and its statement, like `saw`; the arguments are those of Signatures.witness.

        Statements that do not belong to the consensus are ignored.
        """
        if run != self._session or context not in KINDS:
            return None
        peer, number = (1, 0) if context == PAYLOAD else (0, 1)
        statement = cast(Statement, (context, fields[number], *fields[2:]))
        return self.saw(str(fields[peer]), statement, signature)

    def _comparable(
        self, of_round: dict[tuple[str, str], dict[Place, Signed]], peer: str, context: str
    ) -> Iterable[Signed]:
        return [signed for kind in comparable(context) for signed in of_round.get((peer, kind), {}).values()]

    def _is_close(self, number: int) -> bool:
        return abs(number - self._number) <= ROUNDS_KEPT


def place_of(statement: Statement) -> Place:
    """Return the view and the head that a statement refers to: (0, b"") for a payload, view 0 for a resignation."""
    if statement[0] == PAYLOAD:
        return 0, b""
    return 0 if statement[0] == RESIGN else int(statement[3]), cast(bytes, statement[2])
