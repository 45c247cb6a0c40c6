"""What a user sees of one round has one number, whichever module reports it."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from outerloop.core.contributor_rows import contributors
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.inner.events import round_fields
from outerloop.types import Contributor, Round
from tests.exchange.test_roster_news import ADA, OWN, decided, lines_of
from tests.support.swarm.gather_scene import INNER_S, Swarm
from tests.support.swarm.virtual_clock import virtual
from tests.support.toy_workers import report


@pytest.mark.parametrize(("fragments", "number"), [(1, 2), (3, 7)])
@virtual
async def test_all_lines_about_the_third_round_call_it_round_3(fragments: int, number: int) -> None:
    """`number`: of the commit, which counts from 0; of three fragments, it is that of the second one."""
    swarm = await Swarm("ab", fragments=fragments).start()
    await swarm.until("ab", number)
    await swarm["b"].kill()
    await asyncio.sleep(2 * INNER_S)
    waiting = swarm["a"].rounds.waits_for(number)
    landed = replace(report(2, ""), round=Round(*divmod(number, fragments)))
    assert waiting.startswith(str(landed.round)), waiting
    assert str(landed).startswith(f"{landed.round}: ") and str(landed.round).split()[:2] == ["round", "3"]
    assert swarm["a"].rounds.context.round_of(number) == landed.round
    exchange = SimpleNamespace(info=SwarmGather.info, alive=2, peer="000-a", size=2)
    spent = {"compute_s": 1.0, "communication_s": 1.0, "others_s": 1.0}
    event = round_fields(landed, exchange, spent=spent, counters={"bytes_sent": 0})
    assert event["round"] == 3
    assert contributors([Contributor("a", 1, 1, 2, 2)], {})[0].first_round == 3


def test_a_change_of_the_roster_has_the_number_of_its_round() -> None:
    log = [decided(6, OWN), decided(7, OWN, ADA)]
    assert lines_of(log[:1], log, fragments=3)[1] == ["joined: …AAAAAAAA, round 3"]
