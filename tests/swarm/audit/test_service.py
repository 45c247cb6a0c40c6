"""A peer sends leaves and states to its auditors only, and an auditor fetches no more than the peer committed to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outerloop.swarm.audit.picks import Pick
from outerloop.swarm.audit.service import Answer, AuditRpc
from outerloop.swarm.p2p.transport import protocol_name
from outerloop.swarm.timeouts import AUDIT_S
from outerloop.swarm.transfer.sources import ContentUnavailable
from tests.support.swarm.audit_scene import AuditedNode, AuditedSwarm, settled
from tests.support.swarm.audit_states import leaf_of, state_of
from tests.support.swarm.gather_scene import RUN
from tests.support.swarm.virtual_clock import virtual


def silent(node: AuditedNode) -> None:
    """A peer that keeps no record of what it committed to."""
    node.desk.record = lambda number: None  # type: ignore[method-assign]


def lies_about_leaves(node: AuditedNode) -> None:
    """A peer that sends other leaves than its root commits to."""
    record = node.desk.record

    def lie(number: int) -> Any:
        true = record(number)
        return true and replace(true, leaves=(*true.leaves[1:], true.leaves[0]))

    header = node.desk.header
    node.desk.header = lambda number: replace(header(number), root=b"r" * 32)  # type: ignore[method-assign]
    node.desk.record = lie  # type: ignore[method-assign]


def lies_about_sizes(node: AuditedNode) -> None:
    """A peer that announces a state of many gigabytes."""
    record = node.desk.record

    def lie(number: int) -> Any:
        true = record(number)
        return true and replace(true, sizes=tuple((1 << 40, 1 << 40, 1 << 40) for _ in true.sizes))

    node.desk.record = lie  # type: ignore[method-assign]


def lies_about_earlier_leaves(node: AuditedNode) -> None:
    """A peer that sends the true leaves of a round, and those of two rounds before as those of the round before."""
    record = node.desk.record

    def lie(number: int) -> Any:
        true = record(number)
        return true and replace(true, number=number - 1)

    node.desk.record = lie  # type: ignore[method-assign]


@pytest.mark.parametrize("lie", [silent, lies_about_leaves, lies_about_sizes])
@virtual
async def test_a_peer_that_does_not_send_what_it_committed_to_refuses(tmp_path: Path, lie: Any) -> None:
    swarm = await AuditedSwarm("abcd", tmp_path).start()
    lie(swarm["d"])
    await settled(swarm, 5)
    about_d = [row for node in "abc" for row in swarm[node].verdicts if row["peer"] == "003-d"]
    assert about_d and {row["outcome"] for row in about_d} == {"refused"}
    assert sum(swarm[node].auditor.counters["audits_refused"] for node in "abc") == len(about_d)
    assert not any(swarm[node].expelled for node in "abcd")


@virtual
async def test_a_peer_that_sends_other_leaves_of_the_round_before_refuses(tmp_path: Path) -> None:
    """Round 0 has no round before."""
    swarm = await AuditedSwarm("abcd", tmp_path).start()
    lies_about_earlier_leaves(swarm["d"])
    await settled(swarm, 5)
    about_d = [row for node in "abc" for row in swarm[node].verdicts if row["peer"] == "003-d"]
    assert {(row["round"] > 0, row["outcome"]) for row in about_d} == {(False, "match"), (True, "refused")}


def stall(rpc: AuditRpc, peer: str) -> None:
    """Receive the answer of a peer after the longest time that an auditor waits."""
    fetch = rpc.fetch

    async def slow(pick: Pick, before: tuple[int, bytes]) -> Answer:
        if pick.peer == peer:
            await asyncio.sleep(AUDIT_S)
        return await fetch(pick, before)

    rpc.fetch = slow  # type: ignore[method-assign]


@virtual
async def test_a_peer_that_stalls_its_auditor_does_not_block_the_audits_of_the_next_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    swarm = await AuditedSwarm("abcd", tmp_path).start()

    for node in "abc":
        stall(swarm[node].auditor.rpc, "003-d")
    await settled(swarm, 8)
    picks = swarm["a"].auditor.picks
    first = min(picks)
    auditor = swarm[picks[first]["003-d"].auditors[0][4:]]
    next_round = {peer for peer, pick in picks[first + 1].items() if pick.auditors[0] == auditor.name} - {"003-d"}
    outcomes = {(row["round"], row["peer"]): row["outcome"] for row in auditor.verdicts}
    assert outcomes[first, "003-d"] == "refused"
    assert f"round {first + 1}: 003-d did not answer its auditor: too late" in caplog.messages
    assert next_round and {outcomes.get((first + 1, peer)) for peer in next_round} == {"match"}


@virtual
async def test_each_part_of_a_state_is_bounded_by_the_same_part_of_the_auditors_states(tmp_path: Path) -> None:
    swarm = await AuditedSwarm("abcd", tmp_path).start()
    bulk, bounds = swarm["a"].auditor.rpc.bulk, []
    get = bulk.get

    async def bounded(*arguments: Any, at_most: int, **options: Any) -> bytes:
        bounds.append(at_most)
        return await get(*arguments, at_most=at_most, **options)

    bulk.get = bounded  # type: ignore[method-assign]
    await settled(swarm)
    assert set(bounds[0::3]) <= {len("weights a 9"), len("weights a 10")}
    assert set(bounds[1::3]) <= {len("optimizer a 9"), len("optimizer a 10")}
    assert set(bounds[2::3]) == {len("rest a")}


@virtual
async def test_only_the_picked_auditors_get_leaves_and_states(tmp_path: Path) -> None:
    swarm = await AuditedSwarm("abcde", tmp_path).start()
    await settled(swarm)
    pick = swarm["a"].auditor.picks[3]["004-e"]
    stranger = next(letter for letter in "abcd" if letter not in {name[4:] for name in pick.auditors})
    node = swarm[stranger]
    protocol = protocol_name(RUN, AuditRpc.service)
    async with node.link.open_stream("e", protocol) as stream:
        await stream.send_object({"number": 3})
        assert await stream.receive_object() == {}
    async with node.link.open_stream("e", protocol) as stream:
        await stream.send_object({"number": "three"})
        await stream.ended()
    await asyncio.sleep(5)
    assert swarm["e"].link.trust.rejections.of_kind["requests"] == 1
    allowed = {name[4:] for number in range(4) for name in swarm["a"].auditor.picks[number]["004-e"].auditors}
    assert len(swarm["e"].auditor.rpc.auditors) > 0 and swarm["e"].auditor.rpc.auditors.keys() <= allowed
    sha = leaf_of(state_of("e", 3, pick.window)).weights
    swarm["e"].auditor.rpc.auditors.pop(stranger, None)
    with pytest.raises(ContentUnavailable):
        await node.auditor.rpc.bulk.get(sha, 11, ["e"], at_most=99, timeout_s=5)
    auditor = swarm[pick.auditors[0][4:]]
    weights = state_of("e", 3, pick.window)[0]
    assert await auditor.auditor.rpc.bulk.get(sha, len(weights), ["e"], at_most=99, timeout_s=5) == weights
