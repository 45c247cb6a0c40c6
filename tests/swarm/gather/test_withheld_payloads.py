"""A member that proposes or offers what it never gives: the others' payloads arrive, and the rounds go on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.p2p.framing import PIECE_BYTES, Stream
from outerloop.swarm.timeouts import STALL_S
from tests.support.swarm.gather_liar import Liar
from tests.support.swarm.gather_scene import INNER_S, MAX_BYTES, RUN, Swarm
from tests.support.swarm.virtual_clock import now_s, run, virtual

pytestmark = pytest.mark.long

HONEST = "abcdefgh"


async def swarm_with_withholder(
    says: Callable[[Liar, Swarm, int], Any], *, waits: bool, **options: Any
) -> tuple[Swarm, Liar]:
    """Eight honest peers, and "008-i", which offers what it `says`: of what it does not hold it says that it does."""
    swarm = Swarm(HONEST + "i", **options)
    liar = Liar(swarm.network, swarm["i"].name)
    del swarm.nodes["i"]
    await liar.serve(lambda number: says(liar, swarm, number))

    async def give(remote: str, request: Any, stream: Stream) -> None:
        if request["sha"] in liar.held:
            await liar.bulk.uploads.answer(remote, request, stream)
            return
        while waits:
            await stream.send_object({"wait": True})
            await asyncio.sleep(STALL_S - 1)
        await stream.send_object({"length": MAX_BYTES})
        while True:
            await stream.write(bytes(PIECE_BYTES))
            await asyncio.sleep(STALL_S - 1)

    await liar.link.serve(f"outerloop/1/{RUN}/bulk", allowed=lambda peer: True, handler=give)
    await swarm.start()
    return swarm, liar


def truth(liar: Liar, swarm: Swarm, number: int) -> list[Any]:
    """A payload that can be had."""
    return liar.offer(liar.seal(b"x" * 1000, number))


async def until_it_leads(swarm: Swarm, liar: Liar) -> HardState:
    """Until it leads the round that begins."""
    for _ in range(100_000):
        machines = [swarm[letter].rounds.context.chain for letter in HONEST]
        first = machines[0]
        begins = {(machine.number, machine.view) for machine in machines} == {(first.number, 0)}
        if begins and first.number > 0 and first.hard_state.leader(0) == liar.name and len(first.payloads) <= 1:
            return first.hard_state
        await asyncio.sleep(0.05)
    raise AssertionError("it never leads")


@pytest.mark.parametrize("waits", [False, True])
@virtual
async def test_a_leader_that_proposes_what_nobody_has_delays_a_round_by_views_alone(waits: bool) -> None:
    swarm, liar = await swarm_with_withholder(truth, waits=waits)
    hard_state, began_s = await until_it_leads(swarm, liar), now_s()
    made_up = tuple(Participant(name, random.randbytes(32), MAX_BYTES) for name in hard_state.roster)
    proposal = liar.propose(Commit(hard_state.number, hard_state.head.digest, 0, made_up, hard_state.roster))
    for letter in HONEST:
        await liar.say(letter, proposal)
    await swarm.until(HONEST, hard_state.number + 1)
    assert now_s() - began_s < INNER_S + 2 * STALL_S
    swarm.agree()
    assert set(HONEST) <= set(swarm["a"].who(hard_state.number))
    pulls = swarm["a"].rounds.downloads
    assert not set(made_up) & {one for _, one in pulls.running}, "what was made up is not fetched any longer"


@pytest.mark.parametrize("waits", [False, True])
def test_a_payload_that_never_comes_makes_nobody_patient_with_a_silent_leader(waits: bool) -> None:
    """It is on its way while the others train for much longer than a round waits for anybody."""
    training_s, deadline_s = 30 * INNER_S, 20.0

    def says(liar: Liar, swarm: Swarm, number: int) -> list[Any]:
        leads = swarm["a"].rounds.context.chain.hard_state.leader(0) == liar.name
        return [random.randbytes(32), MAX_BYTES] if leads and number > 0 else truth(liar, swarm, number)

    async def scene() -> None:
        speeds = dict.fromkeys(HONEST, training_s)
        swarm, liar = await swarm_with_withholder(says, waits=waits, inner_s=speeds, deadline_s=deadline_s)
        hard_state, began_s = await until_it_leads(swarm, liar), now_s()
        await swarm.until(HONEST, hard_state.number + 1, limit_s=3 * training_s)
        assert now_s() - began_s < training_s + 2 * deadline_s
        swarm.agree()

    run(scene(), limit_s=30_000)
