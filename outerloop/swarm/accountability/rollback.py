"""Whether this peer's memory is older than what the peer has signed: its disk was set back while the process lived.

A process notes in the identity file that it has a memory (hard_state_file.py), and no more than that: a snapshot of the
disk from later in the life of the same process passes there. But votes are on disk before anybody hears of them, so a
vote of this peer that others show, and that its memory does not hold, was cast after the snapshot:

    accept     of the round at hand, in a later view than what is remembered as accepted
    promise    of the round at hand, of a later view than what is remembered as promised
    either     of a later round than the one at hand

A peer that has left a chain for another one (forks.py, HardState.left) forgets on purpose what it voted on the chain it
left, so nothing is concluded until its rounds have passed the height of that chain. What nobody shows is not noticed:
of three peers two that are set back together, while the third is away, may vote twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from outerloop.swarm.access.signatures import Field
from outerloop.swarm.accountability.evidence import ACCEPT, PROMISE
from outerloop.swarm.consensus.hard_state import HardState


def forgotten(memory: HardState, context: str, sitting: str | bytes, said: Sequence[Field]) -> str:
    """Return which vote of this peer its memory does not hold, in words; empty where what was signed is no such vote.

    `context`, `sitting` and `said` as Signatures.witness is told them.
    """
    if sitting != memory.run or context not in (ACCEPT, PROMISE) or said[0] != memory.peer or memory.left:
        return ""
    number, head, view = cast(tuple[int, bytes, int], said[1:4])
    if number > memory.number:
        is_held = False
    else:
        is_held = number < memory.number or head != memory.head.digest or view <= _held(memory, context)
    return "" if is_held else f"has voted in view {view} of round {number}, which its memory does not hold"


def _held(memory: HardState, context: str) -> int:
    """The view up to which votes of a kind are remembered."""
    if context == PROMISE:
        return memory.promised
    return memory.accepted.view if memory.accepted else -1
