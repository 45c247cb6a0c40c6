"""Peers audit whom the commit picks: a liar that two auditors find is expelled, and no auditor alone expels a peer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outerloop.swarm.accountability.evidence import Evidence, guilty
from outerloop.swarm.audit.leaves import HEADER, MATCH, REFUSED, Header
from outerloop.swarm.audit.picks import Pick
from outerloop.swarm.audit.verdict import Verdict
from outerloop.swarm.validation import MalformedMessage
from tests.support.swarm.audit_scene import AuditedSwarm, settled
from tests.support.swarm.audit_states import leaf_of, state_of
from tests.support.swarm.gather_scene import RUN
from tests.support.swarm.memory_keys import trust_of
from tests.support.swarm.virtual_clock import virtual


def accuses(*peers: str) -> Any:
    """A trainer that finds a differing leaf in every window of these peers."""
    return lambda order: order.pick.window + 1 if order.pick.peer[4:] in peers else MATCH


@virtual
async def test_honest_peers_match_and_every_audited_peer_has_one_verdict(tmp_path: Path) -> None:
    swarm = await AuditedSwarm("abcd", tmp_path).start()
    await settled(swarm)
    verdicts = [row for node in "abcd" for row in swarm[node].verdicts if row["round"] < 4]
    assert {row["outcome"] for row in verdicts} == {"match"} and len(verdicts) == 4 * 4
    assert len({(row["round"], row["peer"]) for row in verdicts}) == 4 * 4
    assert not any(swarm[node].expelled or swarm[node].status for node in "abcd")
    [order] = [order for order in swarm["a"].orders if order.pick.number == 1][:1]
    pick = order.pick
    assert order.state == state_of(pick.peer[4:], 1, pick.window) and len(order.leaves) == 4
    assert order.before[-1].optimizer == order.leaves[0].optimizer == leaf_of(state_of(pick.peer[4:], 0, 3)).optimizer
    assert order.parent == swarm["a"].auditor.picks[0][pick.peer].commit
    row = swarm["a"].verdicts[0]
    pick = swarm["a"].auditor.picks[row["round"]][row["peer"]]
    verdict = [MATCH, bytes.fromhex(row["signature"])]
    Verdict.of(verdict, pick, "000-a", trust_of("z").signatures, session=RUN)


@virtual
async def test_with_a_small_probability_few_peers_are_audited(tmp_path: Path) -> None:
    swarm = await AuditedSwarm("abcd", tmp_path, probability=0.1).start()
    await settled(swarm, 30)
    assert 1 <= sum(len(swarm[node].verdicts) for node in "abcd") <= 30


@virtual
async def test_a_liar_that_two_auditors_find_is_expelled_by_all(tmp_path: Path) -> None:
    swarm = await AuditedSwarm("abcd", tmp_path).start()
    for node in "abc":
        swarm[node].judge = accuses("d")
    await swarm.until_expelled("d", by="abc")
    [evidence] = swarm["a"].rounds.witness.expelled.evidence
    assert evidence.peer == "003-d" and guilty(evidence, trust_of("z").signatures) == "003-d"
    assert "reported other inner steps for commit" in evidence.why and "d" not in {one[4:] for one in evidence.auditors}
    done = swarm["a"].done
    await swarm.until("abc", done + 3)
    assert swarm["a"].who(done + 2) == "abc"


@virtual
async def test_a_peer_with_two_verdicts_against_it_ends_and_says_what_to_do(tmp_path: Path) -> None:
    swarm = await AuditedSwarm("abcd", tmp_path).start()
    await settled(swarm, 2)
    pick = swarm["a"].auditor.picks[1]["003-d"]
    verdicts = [
        Verdict.sign(pick, 1, trust_of(name[4:]).signatures, session=RUN, own=name).signed for name in pick.auditors
    ]
    assert await swarm["d"].rounds.witness.accusations.accuse(Evidence.of(RUN, "003-d", *verdicts))
    while not swarm["d"].error:
        await asyncio.sleep(1)
    assert "from leaf 1 on, so the other peers expel it" in str(swarm["d"].error)
    assert "check the memory and the data of this machine" in str(swarm["d"].error)


@virtual
async def test_the_verdict_of_one_lying_auditor_expels_no_peer(tmp_path: Path) -> None:
    swarm = await AuditedSwarm("abcd", tmp_path).start()
    swarm["d"].judge = accuses("a", "b", "c")
    await settled(swarm, 6)
    false = [row for row in swarm["d"].verdicts if row["outcome"] != "match"]
    assert false and any("first differing leaf" in line for line in swarm["d"].status)
    assert not any(swarm[node].expelled for node in "abcd")
    repeated = [row for node in "abc" for row in swarm[node].verdicts if row["round"] < 6]
    assert len(repeated) > 3 * 6, "second auditors repeat the audits in which a leaf differed"


@virtual
async def test_two_verdicts_count_only_from_the_picked_auditors_and_for_the_picked_root(tmp_path: Path) -> None:
    swarm = await AuditedSwarm("abcde", tmp_path).start()
    await settled(swarm)
    pick = swarm["a"].auditor.picks[2]["004-e"]
    others = [name for name in ("000-a", "001-b", "002-c", "003-d") if name not in pick.auditors]

    def evidence(first: str, second: str, of: Pick = pick, leaf: int = 1) -> Evidence:
        verdicts = [
            Verdict.sign(of, leaf, trust_of(name[4:]).signatures, session=RUN, own=name) for name in (first, second)
        ]
        return Evidence.of(RUN, of.peer, *(verdict.signed for verdict in verdicts))

    confirms, one, two = swarm["a"].auditor.confirms, *pick.auditors
    assert guilty(evidence(one, two), trust_of("z").signatures) == "004-e" and confirms(evidence(one, two))
    assert not confirms(evidence(one, others[0])) and not confirms(evidence(*others))
    assert not confirms(evidence(one, two, replace(pick, commit=bytes(32))))
    assert not confirms(evidence(one, two, replace(pick, header=replace(pick.header, root=b"x" * 32))))
    assert not confirms(evidence(one, two, replace(pick, number=99)))
    assert not evidence(one, one).why and not evidence(one, two, leaf=MATCH).why
    assert not await swarm["b"].rounds.witness.accusations.accuse(evidence(*others))
    assert not swarm["b"].expelled
    assert Evidence.from_map(evidence(one, two).to_map()) == evidence(one, two)
    forged = evidence(one, two).to_map()
    forged["first"][1] = bytes(64)
    assert not guilty(Evidence.from_map(forged), trust_of("z").signatures)


@virtual
async def test_a_payload_without_a_header_is_left_out_so_that_no_peer_avoids_audits(tmp_path: Path) -> None:
    swarm = await AuditedSwarm("abcd", tmp_path).start()
    payload = swarm["d"].payload
    swarm["d"].payload = lambda number: payload(number)[HEADER.size :]  # type: ignore[method-assign]
    await settled(swarm, 3)
    for node in "abcd":
        landed = {peer: bytes(message) for peer, message in swarm[node].landed[2]}
        assert landed["003-d"] == b"" and landed["000-a"].startswith(b"000-a 2 1")
        assert "003-d" not in swarm[node].auditor.picks[2]


@virtual
async def test_an_auditor_that_cannot_audit_gives_no_verdict(tmp_path: Path) -> None:
    swarm = await AuditedSwarm("abc", tmp_path).start()
    forgetful, slow = swarm["a"], swarm["b"]
    forgetful.desk.set_record = lambda record: None  # type: ignore[method-assign]
    slow.replaying.cancel()
    await settled(swarm, 12)
    about_others = [row for node in (forgetful, slow) for row in node.verdicts if row["peer"] != forgetful.name]
    assert about_others == [] and not slow.orders
    slow.replaying = asyncio.create_task(slow.replay())
    await settled(swarm, 16)
    assert slow.orders and {row["outcome"] for row in slow.verdicts if row["peer"] == "002-c"} == {"match"}


@virtual
async def test_a_false_notice_to_the_second_auditor_is_refused(tmp_path: Path) -> None:
    swarm = await AuditedSwarm("abcd", tmp_path).start()
    await settled(swarm)
    pick = swarm["a"].auditor.picks[3]["003-d"]
    first, second = (name[4:] for name in pick.auditors)
    orders = len(swarm[second].orders)
    await swarm[first].auditor.rpc.notify(pick.auditors[1], pick, [1, bytes(64)])
    await asyncio.sleep(5)
    assert swarm[second].link.trust.rejections.of_kind["ballots"] == 1
    repeated = [order for order in swarm[second].orders[orders:] if order.pick == pick]
    assert not repeated and not any(swarm[node].expelled for node in "abcd")


def test_a_verdict_is_checked_before_it_is_used() -> None:
    pick = Pick(3, b"c" * 32, "003-d", Header(4, b"r" * 32, b"m" * 32), 1, ("000-a", "001-b"))
    signatures = trust_of("a").signatures
    verdict = Verdict.sign(pick, 2, signatures, session=RUN, own="000-a")
    assert Verdict.of(verdict.to_list(), pick, "000-a", trust_of("b").signatures, session=RUN) == verdict
    assert verdict.differs and verdict.outcome == "first differing leaf 2"
    assert Verdict.sign(pick, REFUSED, signatures, session=RUN, own="000-a").outcome == "refused"
    for wrong in (None, [2], [2, b"short"], [-3, verdict.signature], [1, verdict.signature], ["2", verdict.signature]):
        with pytest.raises(MalformedMessage):
            Verdict.of(wrong, pick, "000-a", signatures, session=RUN)
    with pytest.raises(MalformedMessage, match="not signed by its auditor"):
        Verdict.of(verdict.to_list(), pick, "001-b", signatures, session=RUN)
