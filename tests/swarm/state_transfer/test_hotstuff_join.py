"""A newcomer to a run with exchange.trust=nobody follows commits that more than two thirds of a roster have signed."""

import pytest

from tests.support.swarm.gather_liar import swarm_with_liar
from tests.support.swarm.state_transfer_scene import donate, lead_astray, newcomer, taking
from tests.support.swarm.virtual_clock import virtual


@pytest.mark.parametrize("astray", [False, True])
@virtual
async def test_a_newcomer_takes_the_state_whatever_a_liar_tells(astray: bool) -> None:
    swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None, trust="nobody", absent_rounds=8)
    if astray:
        await lead_astray(liar)
    await donate(swarm)
    await swarm.until("abc", 4)
    names = [liar.name, *(node.name for node in swarm.nodes.values())]
    joining, at = await newcomer(swarm, names)
    number, content = await taking(at, names)
    assert content == b"state %d" % number and number < 100
    log = joining.rounds.context.chain.hard_state.log
    assert log and all(decided.byzantine and decided.accepts for decided in log)
