"""A peer whose disk was restored to an earlier state stops once it is shown a vote that it does not remember."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from outerloop.swarm.accountability.equivocation import forgotten
from outerloop.swarm.accountability.expulsion import read_register
from outerloop.swarm.consensus.commit import Commit, genesis
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import Accepted, ChainLink
from outerloop.types import UserError
from tests.support.swarm.consensus_world import RUN, payload
from tests.support.swarm.gather_scene import MemoryDisk, Swarm, memory_of
from tests.support.swarm.virtual_clock import now_s, virtual


@pytest.mark.parametrize("seed", range(3))
@virtual
async def test_a_peer_started_from_an_old_snapshot_votes_no_more(seed: int) -> None:
    """Nothing was started in between, so its counts are those of the snapshot; the others go on, and expel nobody."""
    swarm = await Swarm("abc", seed=seed).start()
    await swarm.until("abc", 3)
    snapshot = MemoryDisk(swarm["b"].disk)
    await swarm.until("abc", 7)
    await swarm["b"].kill()
    remembered = memory_of(swarm["b"]).number
    swarm["b"].disk = snapshot
    await swarm["b"].restart(lost=4)
    assert memory_of(swarm["b"]).number < remembered
    began_s = now_s()
    while swarm["b"].error is None:
        assert now_s() < began_s + 300, swarm.describe()
        await asyncio.sleep(1.0)
    error, swarm["b"].error = swarm["b"].error, None
    assert isinstance(error, UserError) and "its disk was restored" in str(error)
    stopped = memory_of(swarm["b"])
    assert stopped.number <= remembered
    await swarm.until("ac", 10)
    assert memory_of(swarm["b"]) == stopped, "it votes no more"
    assert not any(read_register(swarm[one].disk).expelled for one in "ac")


@pytest.mark.parametrize("letter", "abc")
@virtual
async def test_a_peer_that_returns_with_its_saved_state_continues(letter: str) -> None:
    swarm = await Swarm("abc", seed=2).start()
    for rounds in (2, 4, 6):
        await swarm.until("abc", rounds)
        await swarm[letter].kill()
        await swarm[letter].restart(lost=1)
    await swarm.until("abc", 8)
    swarm.agree()


def decided(number: int, head: Commit) -> Commit:
    roster = ("a", "b", "c")
    return Commit(number, head.digest, 0, tuple(payload(one, number) for one in roster), roster)


def hard_state() -> HardState:
    """Of b in round 1, in view 2, where it has accepted in view 1."""
    first = HardState.first(session=RUN, peer="b", roster="abc")
    proposal = Accepted(decided(0, first.head), (ChainLink(0, (), bytes(64)), ChainLink(1, (), bytes(64))))
    return replace(first, promised=2, accepted=proposal)


HEAD = genesis(RUN, "abc", first=0).digest
SAID: dict[str, tuple[str, str, tuple[Any, ...], bool]] = {
    "what it accepted last": ("accept", RUN, ("b", 0, HEAD, 1, b"x"), False),
    "what it accepted before": ("accept", RUN, ("b", 0, HEAD, 0, b"x"), False),
    "a later accept": ("accept", RUN, ("b", 0, HEAD, 2, b"x"), True),
    "its last promise": ("promise", RUN, ("b", 0, HEAD, 2, -1, b""), False),
    "a later promise": ("promise", RUN, ("b", 0, HEAD, 3, -1, b""), True),
    "a resignation": ("resign", RUN, ("b", 0, HEAD), True),
    "a resignation of a round that is over": ("resign", RUN, ("b", -2, HEAD), False),
    "a later round": ("accept", RUN, ("b", 1, b"h", 0, b"x"), True),
    "a promise of a later round": ("promise", RUN, ("b", 9, b"h", 1, -1, b""), True),
    "after another head": ("accept", RUN, ("b", 0, b"h", 5, b"x"), False),
    "another peer's": ("accept", RUN, ("a", 5, HEAD, 2, b"x"), False),
    "another session's": ("accept", "s", ("b", 5, HEAD, 2, b"x"), False),
    "no vote": ("view", RUN, ("b", 5, HEAD, 9), False),
    "a payload": ("payload", RUN, (5, "b", b"x"), False),
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
def test_votes_that_memory_does_not_hold_are_found(said: tuple[str, str, tuple[Any, ...], bool]) -> None:
    context, sitting, fields, is_forgotten = said
    assert bool(forgotten(hard_state(), context, sitting, fields)) == is_forgotten


def test_votes_on_a_chain_that_was_left_are_forgotten_on_purpose() -> None:
    """After a restart as well: what was left is part of the memory on disk."""
    left = replace(hard_state(), left=frozenset({(1, b"h" * 32)}))
    restarted = HardState.from_bytes(left.to_bytes(), session=RUN, peer="b")
    for context, session, fields, _ in SAID.values():
        assert forgotten(restarted, context, session, fields) == ""
