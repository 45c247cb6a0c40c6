"""Whom a newcomer believes: no minority of those that answer makes it follow a history that is not the run's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.access.signatures import KeySigner
from outerloop.swarm.consensus.commit import Commit, genesis
from outerloop.swarm.consensus.proof import contradictions, newest_provable_commit
from outerloop.swarm.consensus.state import ROUNDS_KEPT
from outerloop.swarm.consensus.statements import accept
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.ballot_rpc import send_message
from outerloop.swarm.gather.log_rpc import LogRpc
from outerloop.swarm.membership.formation import Formation
from outerloop.swarm.membership.member_list import Members, session_of
from outerloop.swarm.membership.mismatched_peers import MismatchedPeers
from outerloop.swarm.membership.roster import Record, Roster
from outerloop.swarm.membership.run_settings import RunSettings
from outerloop.swarm.p2p.framing import Unreadable
from outerloop.swarm.state_transfer.join import StateTransfer
from outerloop.swarm.timeouts import HISTORY_S
from tests.support.swarm.gather_liar import Liar, swarm_with_liar
from tests.support.swarm.gather_scene import RUN, MemoryDisk, Node, Swarm
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.state_transfer_scene import donate, false_states, newcomer, state_transfer_of, taking
from tests.support.swarm.toy_signatures import ToySigner, decided_by
from tests.support.swarm.virtual_clock import virtual

SIGNER = ToySigner("newcomer")
FIRST = genesis("r", "abc")


def after(
    head: Commit, count: int, *, signed: str = "ab", roster: str = "abc", view: int = 0
) -> list[CommitCertificate]:
    """So many commits that follow, each accepted by `signed` and naming `roster`."""
    made: list[CommitCertificate] = []
    for _ in range(count):
        head = Commit(head.number + 1, head.digest, view, (), tuple(sorted(roster)))
        made.append(decided_by(signed, head, view))
    return made


CHAIN = after(FIRST, 30)
KEPT = CHAIN[-ROUNDS_KEPT:]
HEAD = CHAIN[-1].commit


def forged(number: int) -> CommitCertificate:
    """A round far ahead, of a roster of its own."""
    return decided_by("d", Commit(number, b"p" * 32, 0, (), ("d",)))


LIES = {
    "a history of its own": [forged(1000)],
    "a history of its own after the real one": [*KEPT, forged(1000)],
    "the next commit with its own accept alone": [*KEPT, *after(HEAD, 1, signed="d", roster="d")],
    "the next commit with accepts of others that it made": [
        *KEPT,
        CommitCertificate(after(HEAD, 1, roster="d")[0].commit, 0, tuple((peer, b"s" * 64) for peer in "abd")),
    ],
    "the next commit with accepts of another view": [
        *KEPT, CommitCertificate((next_one := after(HEAD, 1)[0]).commit, 1, next_one.accepts)
    ],
    "a fork of long ago, by a majority of then": [*CHAIN[:2], *after(CHAIN[1].commit, 40, roster="d", signed="abd")],
    "another commit at the head": [*KEPT[:-1], *after(KEPT[-2].commit, 1, signed="d", roster="d")],
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_by_name_and_the_honest_history_is_taken(lie: str) -> None:
    logs = {"a": KEPT, "b": KEPT, "d": LIES[lie]}
    head = newest_provable_commit(logs, SIGNER)
    assert head == HEAD and set(contradictions(logs, HEAD)) == {"d"}
    assert f"sent commit {LIES[lie][-1].commit.number}" in contradictions(logs, HEAD)["d"]


def test_a_peer_that_is_ahead_is_followed_as_far_as_its_commits_are_signed() -> None:
    logs = {"a": CHAIN[-ROUNDS_KEPT:], "b": CHAIN[-ROUNDS_KEPT - 3 : -3], "c": CHAIN[-ROUNDS_KEPT - 5 : -5]}
    assert newest_provable_commit(logs, SIGNER) == HEAD and contradictions(logs, HEAD) == {}
    moved = after(HEAD, 1, roster="efg", signed="bc")
    moved += after(moved[-1].commit, 3, roster="efg", signed="fg")
    logs = {"a": KEPT, "b": [*KEPT, *moved], "c": KEPT}
    assert newest_provable_commit(logs, SIGNER) == moved[-1].commit, "the roster changed in between, twice signed for"


def test_a_log_of_one_commit_counts_and_genesis_is_not_needed() -> None:
    logs = {"a": KEPT, "b": KEPT, "newcomer of a moment ago": [CHAIN[-1]]}
    assert newest_provable_commit(logs, SIGNER) == HEAD


def test_with_half_of_them_lying_there_is_nothing_to_go_by() -> None:
    assert newest_provable_commit({"a": KEPT, "d": [forged(1000)]}, SIGNER) is None
    assert newest_provable_commit({}, SIGNER) is None
    assert newest_provable_commit({"d": [forged(1000)]}, SIGNER) == forged(1000).commit, (
        "the only one that answers is believed"
    )


@settings(max_examples=100, deadline=None)
@given(honest=st.integers(1, 4), seed=st.integers(0, 1 << 20))
def test_no_minority_leads_off_the_history(honest: int, seed: int) -> None:
    """Honest logs end at most 5 commits apart; liars hold any of these, and commits that only they have signed."""
    draw = random.Random(seed)
    logs: dict[str, Sequence[CommitCertificate]] = {}
    for peer in range(honest):
        end = len(CHAIN) - draw.randrange(6)
        logs[f"honest {peer}"] = CHAIN[end - ROUNDS_KEPT : end]
    for peer in range(draw.randrange(honest)):
        log = draw.sample(CHAIN, draw.randrange(1, ROUNDS_KEPT))
        for _ in range(draw.randrange(5)):
            log += after(draw.choice(log).commit, draw.randrange(1, 4), signed="cde", roster="cde", view=peer)
        logs[f"liar {peer}"] = log
    head = newest_provable_commit(logs, SIGNER)
    known = {one.commit for peer, log in logs.items() if peer.startswith("honest") for one in log}
    true = {one.commit for one in CHAIN}
    assert head in true and head.number >= max(one.number for one in known) - 5
    assert not any(peer.startswith("honest") for peer in contradictions(logs, head))


# the same with keys, over a network


async def lie_about_commits(liar: Liar, *, after_head: bool) -> None:
    """Far ahead in a history of its own; or, `after_head`, the next commit, which nobody else has accepted."""
    keys = KeySigner(liar.link.trust.signatures, session=RUN, own=liar.name)

    def signed(commit: Commit) -> CommitCertificate:
        return CommitCertificate(
            commit, 0, ((liar.name, keys.sign(accept(commit.number, commit.parent, 0, commit.digest))),)
        )

    async def tell(remote: str, request: Any, stream: Any) -> None:
        since, told = request["after"], []
        if since is None and not after_head:
            told = [signed(Commit(1000, b"p" * 32, 0, (), (liar.name,)))]
        elif since is not None and after_head:
            told = [signed(Commit(since + 1, b"p" * 32, 0, (), (liar.name,)))]
        await stream.send_object({"commits": len(told)})
        for one in told:
            await send_message(stream, one)
        await stream.ended()

    await liar.link.serve(f"outerloop/1/{RUN}/commits", allowed=lambda peer: True, handler=tell)


async def give_nothing(liar: Liar) -> None:
    async def tell(remote: str, request: Any, stream: Any) -> None:
        await stream.send_object({})
        await stream.ended()

    await liar.link.serve(f"outerloop/1/{RUN}/snapshot", allowed=lambda peer: True, handler=tell)


@pytest.mark.parametrize("after_head", [False, True], ids=["a forged history", "a forged next commit"])
@virtual
async def test_a_newcomer_joins_the_honest_ones_whatever_a_member_tells(after_head: bool) -> None:
    swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None, absent_rounds=8)
    await lie_about_commits(liar, after_head=after_head)
    await give_nothing(liar)
    await donate(swarm)
    await swarm.until("abc", 4)
    names = [liar.name, *(node.name for node in swarm.nodes.values())]
    joining, at = await newcomer(swarm, names)
    number, content = await taking(at, names)
    assert content == b"state %d" % number and number < 100
    taken = joining.rounds.head_of(number) or joining.rounds.context.chain.hard_state.log[0].commit.digest
    assert taken == swarm["a"].rounds.head_of(number)
    assert {who for trust in (at.chain._trust, joining.rounds.context.trust) for _, who in trust.rejections.logged} == {  # noqa: SLF001
        liar.name
    }


@pytest.mark.parametrize("absent_rounds", [2, 8], ids=["of no roster", "of the roster"])
@virtual
async def test_a_member_that_tells_its_log_late_does_not_keep_a_newcomer_from_quick_rounds(absent_rounds: int) -> None:
    """More rounds pass than a log holds before it tells; and it names a state of its own at once."""
    quick = dict.fromkeys("abcd", 1.0)
    swarm, liar = await swarm_with_liar(
        lambda liar, swarm: lambda number: None, inner_s=quick, grace_s=0.1, absent_rounds=absent_rounds
    )

    async def tell(remote: str, request: Any, stream: Any) -> None:
        await asyncio.sleep(HISTORY_S - 1)
        await stream.send_object({"commits": 0})
        await stream.ended()

    await liar.link.serve(f"outerloop/1/{RUN}/commits", allowed=lambda peer: True, handler=tell)
    await false_states(liar, swarm)
    await donate(swarm)
    await swarm.until("abc", 4)
    names = [liar.name, *(node.name for node in swarm.nodes.values())]
    _, at = await newcomer(swarm, names)
    number, content = await asyncio.wait_for(taking(at, names), 60)
    assert content == b"state %d" % number


@virtual
async def test_donors_out_of_reach_do_not_keep_a_newcomer_from_quick_rounds() -> None:
    swarm = await Swarm("abcdf", inner_s=dict.fromkeys("abcdf", 1.0)).start()
    await donate(swarm)
    swarm.part("ab", "e")
    await swarm.until("abcdf", 4)
    names = [node.name for node in swarm.nodes.values()]
    _, at = await newcomer(swarm, names)
    number, content = await asyncio.wait_for(taking(at, names), 60)
    assert content == b"state %d" % number


@virtual
async def test_a_newcomer_whose_chain_most_have_left_begins_anew() -> None:
    """What it takes for the newest commit is on no chain any more when it asks what follows."""
    swarm = await Swarm("abc").start()
    await donate(swarm)
    await swarm.until("abc", 4)
    names = [node.name for node in swarm.nodes.values()]
    _, at = await newcomer(swarm, names)
    true, turns = at.chain.newest_commit, []

    async def newest(*asked: Any) -> Commit:
        head = await true(*asked)
        turns.append(head)
        return replace(head, view=1) if len(turns) == 1 else head

    at.chain.newest_commit = newest  # type: ignore[method-assign]
    number, content = await asyncio.wait_for(taking(at, names), 120)
    assert content == b"state %d" % number and len(turns) > 1


@virtual
async def test_a_newcomer_that_knew_too_few_asks_those_that_it_hears_of_meanwhile() -> None:
    swarm = await Swarm("abc").start()
    await donate(swarm)
    await swarm.until("abc", 2)
    names = [swarm["a"].name]
    node, at = await newcomer(swarm, names, allow="abce")
    work = taking(at, names)
    await asyncio.sleep(30)
    assert not work.done() and node.rounds.last_commit is None, "one of three on the list is believed nothing"
    names += [swarm["b"].name, swarm["c"].name]
    number, content = await asyncio.wait_for(work, 120)
    assert content == b"state %d" % number


@virtual
async def test_a_log_that_is_no_chain_is_refused_as_a_whole() -> None:
    network = MemoryNetwork()
    liar, link = MemoryTransport(network, "d"), MemoryTransport(network, "a")
    asking = LogRpc(link, run=RUN, allowed=bool, since=lambda after: ())
    told: list[CommitCertificate] = []
    await LogRpc(liar, run=RUN, allowed=bool, since=lambda after: told).serve()
    for log in ([KEPT[0], KEPT[2]], [KEPT[1], KEPT[0]], [KEPT[0], KEPT[0]], [KEPT[0], *after(FIRST, 1)]):
        told[:] = log
        with pytest.raises(Unreadable, match="does not follow the one before it"):
            await asking.ask("003-d", None)
    told[:] = KEPT
    assert await asking.ask("003-d", None) == KEPT


@virtual
async def test_a_peer_outside_the_allow_list_is_not_asked() -> None:
    network, asked = MemoryNetwork(), []
    for peer in "ab":
        link = MemoryTransport(network, peer)

        async def tell(remote: str, request: Any, stream: Any, peer: str = peer) -> None:
            asked.append(peer)
            await stream.send_object({"commits": 0})
            await stream.ended()

        await link.serve(f"outerloop/1/{RUN}/commits", allowed=lambda peer: True, handler=tell)
    swarm = Swarm("e")
    swarm.network = network
    node = Node(network, "004-e", ["004-e"], swarm["e"].rules, inner_s=1)
    await node.appear()
    own = MemoryTransport(network, "e", allow=["a", "e"])
    at = StateTransfer(
        own, node.rounds, run=RUN, own="004-e", session=lambda: RUN, allowed=lambda peer: True, disk=MemoryDisk()
    )
    work = asyncio.create_task(
        at.install_state(lambda: ["000-a", "001-b"], session=RUN, at_most=1, progress=lambda here, size: None)
    )
    await asyncio.sleep(5)
    work.cancel()
    assert set(asked) == {"a"}


@virtual
async def test_a_peer_that_fell_behind_still_sends_what_it_can_prove() -> None:
    swarm = await Swarm("abc").start()
    rounds = swarm["c"].rounds
    assert rounds.context.commits_since(None) == (), "no commit yet"
    await swarm.until("abc", 2)
    told = rounds.context.commits_since(None)
    assert [one.commit.number for one in told] == [0, 1] and rounds.context.commits_since(1) == ()
    rounds.outcomes.log_truncated(rounds.context.chain.number)
    assert rounds.needs_state and rounds.context.commits_since(None) == rounds.context.commits_since(-7) == told


# members


class Records:
    """A roster that is known."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records

    async def read(self) -> list[Record]:
        return self.records


def told_members(
    lists: dict[str, Members], *, own: str = "009-e", allow: str = ""
) -> tuple[Formation, MemoryTransport, Any]:
    """A newcomer among peers that have formed, each of which tells a list."""
    network = MemoryNetwork(delay_s=(0.01, 0.1))
    link = MemoryTransport(network, own.partition("-")[2], allow=allow)
    mine = Record(own, ["/x"], "f", 99.0)
    records = [Record(name, ["/x"], "f", 1.0 + i) for i, name in enumerate(lists)]

    async def serve() -> None:
        for name, members in lists.items():

            async def tell(remote: str, request: Any, stream: Any, members: Members = members) -> None:
                await stream.send_object({"members": members, "formed": True, "late": ["008-x", own]})
                await stream.ended()

            await MemoryTransport(network, name.partition("-")[2]).serve(
                "outerloop/1/r/members", allowed=lambda peer: True, handler=tell
            )

    mismatched = MismatchedPeers(
        link, run="r", own=mine, settings=RunSettings(), joined=[], on_status=lambda text: None
    )
    roster = cast(Roster, Records([mine, *records]))
    membership = Formation(link, roster, run="r", peers=2, own=mine, mismatched=mismatched)
    return membership, link, serve


TRUE: Members = [["000-a", 1.0], ["001-b", 2.0]]
FALSE: Members = [["000-a", 1.0], ["003-d", 2.0]]


@pytest.mark.parametrize("order", ["first", "last"])
@virtual
async def test_a_newcomer_goes_by_the_members_that_most_tell(order: str) -> None:
    honest = {"000-a": TRUE, "001-b": TRUE}
    lists = {"003-d": FALSE, **honest} if order == "first" else {**honest, "003-d": FALSE}
    membership, link, serve = told_members(lists)
    await serve()
    await membership.form(timeout_s=30)
    assert membership.late_joiner and membership.session == session_of("r", TRUE)
    assert {who for _, who in link.trust.rejections.logged} == {"003-d"}


@virtual
async def test_without_a_majority_it_waits_and_says_so_and_late_names_outside_the_list_are_none() -> None:
    membership, _, serve = told_members({"000-a": TRUE, "003-d": FALSE})
    await serve()
    with pytest.raises(ValueError, match="these peers do not agree on its members: 000-a, 003-d"):
        await membership.form(timeout_s=5)

    membership, _, serve = told_members({"000-a": TRUE, "001-b": TRUE}, allow="abe")
    await serve()
    await membership.form(timeout_s=5)
    assert "x" not in membership.known and "e" in membership.known


@pytest.mark.parametrize("rounds", [0, 2])
@virtual
async def test_a_peer_whose_first_process_ended_before_its_first_vote_joins_once_it_is_dropped(
    rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk is empty, and the roster of the run names it until the others have dropped it."""
    swarm = await Swarm("abcd", absent_rounds=4).start()
    await swarm["c"].kill()
    swarm["c"].disk.clear()
    await donate(swarm)
    await swarm.until("abd", rounds)
    names = [node.name for node in swarm.nodes.values()]
    again = Node(swarm.network, "002-c", names, swarm["c"].rules, inner_s=10.0)
    swarm.network.cut.discard("c")
    await again.appear()
    assert again.name in swarm["a"].rounds.roster
    number, content = await taking(state_transfer_of(again), names)
    assert content == b"state %d" % number
    assert again.name not in again.rounds.roster and again.rounds.context.chain.votes is False
    assert sum("has no saved votes" in line for line in caplog.messages) == 1
    again.rounds.stop()
