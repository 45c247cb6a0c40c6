"""What the trainer takes of a round: never of a chain that was left while its payloads came."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.gather.committed_rounds import ROUNDS_BEHIND, CommittedRounds, LogTruncated
from outerloop.swarm.gather.round_store import RoundStore
from tests.support.swarm.gather_scene import MemoryDisk
from tests.support.swarm.virtual_clock import virtual

ROSTER = ("000-a", "001-b")


class SlowPulls:
    """A payload is its owner's name, and takes 10 s to come."""

    def __init__(self, store: RoundStore) -> None:
        self._store = store

    def drop_all_but(self, number: int, needed: Sequence[Participant]) -> None:
        pass

    def start(self, number: int, one: Participant, holders: Sequence[str], *, decided: bool) -> asyncio.Task[None]:
        async def pull() -> None:
            await asyncio.sleep(10)
            await self._store.put(number, one, one.peer.encode())

        return asyncio.create_task(pull())


def begun() -> tuple[RoundStore, CommittedRounds, bytes]:
    """Empty: the store, the rounds of peer 000-a, and the digest of the commit that they begin with."""
    store = RoundStore(MemoryDisk())
    outcomes = CommittedRounds(store, SlowPulls(store), own="000-a")  # type: ignore[arg-type]
    first = HardState.first(session="r", peer="000-a", roster=ROSTER)
    outcomes.begin(first)
    return store, outcomes, first.head.digest


@virtual
async def test_a_round_of_a_chain_that_is_left_meanwhile_is_not_taken() -> None:
    _, outcomes, head = begun()
    outcomes.skip_to(-1)
    left, kept = (Commit(0, head, 0, (Participant.of(peer, peer.encode()),), ROSTER) for peer in ROSTER)
    outcomes.add(left)
    taking = asyncio.create_task(outcomes.take(0))
    await asyncio.sleep(5)
    outcomes.leave(0)
    outcomes.add(kept)
    assert [peer for peer, _ in await taking] == ["001-b"]
    assert outcomes.digest(0) == kept.digest and not outcomes.needs_state


@virtual
async def test_what_a_decided_round_waits_for_is_told_with_and_without_missing_payloads() -> None:
    store, outcomes, head = begun()
    payloads = tuple(Participant.of(peer, peer.encode()) for peer in ROSTER)
    assert outcomes.lacks(0) == ""
    outcomes.add(Commit(0, head, 0, payloads, ROSTER))
    assert outcomes.lacks(0) == "decided, payloads of 000-a, 001-b have not arrived yet"
    for payload in payloads:
        await store.put(0, payload, payload.peer.encode())
    assert outcomes.lacks(0) == "decided, all payloads have arrived"


@virtual
async def test_a_wait_for_a_round_that_is_skipped_ends() -> None:
    """Nobody need cancel the rounds in flight of a peer that takes over the others' state."""
    _, outcomes, head = begun()
    outcomes.add(Commit(0, head, 0, (Participant.of("001-b", b"001-b"),), ROSTER))
    decided, open_round = (asyncio.create_task(outcomes.take(number)) for number in (0, 1))
    await asyncio.sleep(5)
    outcomes.skip_to(7)
    for skipped in (decided, open_round):
        with pytest.raises(LogTruncated):
            await skipped


@pytest.mark.parametrize("landed", [True, False], ids=["landed some rounds", "hangs since the restart"])
@virtual
async def test_a_trainer_that_hangs_fills_no_disk(landed: bool) -> None:
    """It has to download the state instead, and only what other peers may ask for stays on the disk."""
    store, outcomes, head = begun()
    if landed:
        outcomes.skip_to(-1)
    payload = Participant.of("001-b", b"001-b")

    async def decide(number: int) -> None:
        await store.put(number, payload, b"001-b")
        outcomes.add(Commit(number, head, 0, (payload,), ROSTER))
        outcomes.begin_round(number + 1)

    for number in range(ROUNDS_BEHIND):
        await decide(number)
    assert outcomes.decided(0) and len(store.since(0)) == ROUNDS_BEHIND == 128
    for number in range(ROUNDS_BEHIND, ROUNDS_BEHIND + 3):
        await decide(number)
        with pytest.raises(LogTruncated):
            outcomes.decided(0)
        assert outcomes.needs_state and len(store.since(0)) == ROUNDS_KEPT
    outcomes.skip_to(ROUNDS_BEHIND)
    assert outcomes.decided(ROUNDS_BEHIND + 2), "it lands the rounds after the state"
