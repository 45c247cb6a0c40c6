"""Pairs of statements that no honest peer signs both. Signatures are not verified here.

    accept, accept     for two different commits after the same head in the same view. This covers a leader that makes
                       two different proposals, because a leader accepts its own proposal
    accept, promise    after the same head: the peer accepted commit X in view v, but its promise for a later view
                       reports no accepted commit, a commit accepted before view v, or another commit in view v
    prepare, prepare   after the same head: two prepare votes in one view, for two commits or with two justifications
                       (hotstuff/__init__.py). This covers a leader that makes two proposals
    commit, commit     for two different commits after the same head in the same view
    commit, prepare    after the same head: the peer voted to commit in view v, so it was locked, and in a later view it
                       voted for a proposal whose justification is of a view before v
    resign, any vote   after the same head: the peer resigned (resignation.py), and voted or promised in that round
    payload, payload   two payloads for the same round
    verdict, verdict   not the accused peer's own statements: the two auditors that a commit picked replayed a window
                       of its inner steps, and both found the same differing leaf (audit/verdict.py)

An honest peer writes a statement to disk before sending it, and reads it back after a crash. It has one chain head at a
time and votes once per view after each head. So it never signs such a pair, even if messages are lost, repeated or
late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outerloop.swarm.accountability.signed_statement import (
    ACCEPT,
    COMMIT,
    PAYLOAD,
    PREPARE,
    PROMISE,
    RESIGN,
    VERDICT,
)
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.validation import id_of


def contradiction(statement: Statement, other: Statement) -> str:
    """Return the offence of a peer that signed both statements, or "" if an honest peer may sign both."""
    first, second = sorted((statement, other), key=lambda statement: str(statement[0]))
    offence = OFFENCES.get((str(first[0]), str(second[0])))
    return offence(first, second) if offence else ""


def comparable(kind: str) -> tuple[str, ...]:
    """Return the kinds of statements that a statement of this kind may contradict."""
    return tuple(second if first == kind else first for first, second in OFFENCES if kind in (first, second))


def _two_proposals(verb: str) -> Callable[[Any, Any], str]:
    """Return a check of two statements of one kind that are about the same commit and view, but name two proposals.

    verb: what the peer did with both, for the description of the offence.
    """

    def offence(first: Any, second: Any) -> str:
        (_, number, *where, proposal), (_, other_number, *other_where, other) = first, second
        if (number, where) != (other_number, other_where) or proposal == other:
            return ""
        return f"{verb} two proposals for commit {number}, view {where[-1]}"

    return offence


def _left_out(accept: Any, promise: Any) -> str:
    (_, number, head, view, accepted), (_, other_number, other_head, later, reported_view, reported) = accept, promise
    if (number, head) != (other_number, other_head) or later <= view:
        return ""
    if reported_view > view or (reported_view, reported) == (view, accepted):
        return ""
    return f"promised view {later} of commit {number} and left out the proposal that it had accepted in view {view}"


def _two_prepares(first: Any, second: Any) -> str:
    (_, number, *where, prepared, justified), (_, other_number, *other_where, also, other_justified) = first, second
    if (number, where) != (other_number, other_where) or (prepared, justified) == (also, other_justified):
        return ""
    return f"voted twice for commit {number}, view {where[-1]}"


def _ignored_lock(commit: Any, prepare: Any) -> str:
    (_, number, head, view, _), (_, other_number, other_head, later, _, justified) = commit, prepare
    if (number, head) != (other_number, other_head) or later <= view or justified >= view:
        return ""
    return f"voted in view {later} of commit {number} although it was locked on a proposal of view {view}"


def _voted_after_all(vote: Any, resignation: Any) -> str:
    if vote[1:3] != resignation[1:3]:
        return ""
    return f"resigned for commit {vote[1]}, and voted or promised in view {vote[3]} of this commit"


def _two_payloads(first: Any, second: Any) -> str:
    (_, number, *payload), (_, other_number, *other) = first, second
    return f"signed two payloads for commit {number}" if number == other_number and payload != other else ""


def _two_verdicts(first: Any, second: Any) -> str:
    (_, number, auditor, *found), (_, other_number, other_auditor, *also) = first, second
    if (number, found) != (other_number, also) or id_of(auditor) == id_of(other_auditor) or found[-1] < 0:
        return ""
    return f"reported other inner steps for commit {number} than two auditors replayed, from leaf {found[-1]} on"


OFFENCES: dict[tuple[str, str], Callable[[Any, Any], str]] = {
    (ACCEPT, ACCEPT): _two_proposals("accepted"),
    (ACCEPT, PROMISE): _left_out,
    (PREPARE, PREPARE): _two_prepares,
    (COMMIT, COMMIT): _two_proposals("voted to decide"),
    (COMMIT, PREPARE): _ignored_lock,
    (PAYLOAD, PAYLOAD): _two_payloads,
    (VERDICT, VERDICT): _two_verdicts,
    **{(vote, RESIGN): _voted_after_all for vote in (ACCEPT, COMMIT, PREPARE, PROMISE)},
}
"""The kinds of two statements, in alphabetical order -> a function that returns the offence that the pair proves.

The function returns "" if the two statements do not contradict each other.
"""
