"""Detect a rollback: this peer's hard state is older than its votes, as its disk was reset during a run of its process.

The identity file records only that a process has a hard state (hard_state_file.py), so a snapshot taken later by the
same process is accepted there. But a vote is on disk before any other peer receives it. So a vote signed by this peer
that is missing from its hard state was cast after the snapshot:

    accept     for the current round, in a later view than the accept on disk
    promise    for the current round, for a later view than the promise on disk
    either     for a round after the current one

A peer that has left a chain for another one (forks.py, HardState.left) discards its votes on the old chain on purpose,
so nothing is concluded until its rounds have passed the height of that chain. A rollback is detected only if some peer
shows such a vote: of three peers, two that are reset together while the third is away may vote twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from outerloop.swarm.access.signatures import Field
from outerloop.swarm.accountability.evidence import ACCEPT, PROMISE
from outerloop.swarm.consensus.hard_state import HardState


def forgotten(hard_state: HardState, context: str, session: str | bytes, fields: Sequence[Field]) -> str:
    """Return a description of a vote of this peer that is missing from its memory; empty if there is no such vote.

    `context`, `session` and `fields` are the arguments of Signatures.witness.
    """
    if session != hard_state.run or context not in (ACCEPT, PROMISE) or fields[0] != hard_state.peer or hard_state.left:
        return ""
    number, head, view = cast(tuple[int, bytes, int], fields[1:4])
    if number > hard_state.number:
        is_held = False
    else:
        is_held = number < hard_state.number or head != hard_state.head.digest or view <= _held(hard_state, context)
    return "" if is_held else f"has voted in view {view} of round {number}, which its memory does not hold"


def _held(hard_state: HardState, context: str) -> int:
    """Return the latest view for which a vote of this kind is remembered."""
    if context == PROMISE:
        return hard_state.promised
    return hard_state.accepted.view if hard_state.accepted else -1
