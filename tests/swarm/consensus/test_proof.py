"""No word of fewer than half makes a peer believe that the run is further than it knows, or somewhere else."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.proof import has_majority, newest_provable_commit, peers_ahead, voters_of
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.consensus.validity import commit_error
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.ballot_rpc import send_message
from outerloop.swarm.gather.catch_up import CatchUpTask
from outerloop.swarm.gather.committed_rounds import CommittedRounds, LogTruncated
from outerloop.swarm.gather.log_rpc import LogRpc
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.swarm.validation import MAX_PEERS
from tests.support.swarm.gather_liar import Liar, swarm_with_liar
from tests.support.swarm.gather_scene import RUN, Swarm
from tests.support.swarm.memory_network import MemoryTransport
from tests.support.swarm.state_transfer_scene import FAR, donate, lead_astray, newcomer, state_transfer_of, taking
from tests.support.swarm.toy_signatures import SESSION, ToySigner, accept_of, decided_by
from tests.support.swarm.virtual_clock import virtual

SIGNER = ToySigner("newcomer")
FALSE = Commit(FAR, b"p" * 32, 0, (), ("003-d",))
FORGED = tuple((f"00{index}-{letter}", b"s" * 64) for index, letter in enumerate("abcd"))
ANSWERS: dict[str, Any] = {
    "nothing": {},
    "no number": {"commits": None},
    "a history of its own": [CommitCertificate(FALSE, 0, ())],
    "one with signatures that are none": [CommitCertificate(FALSE, 0, FORGED)],
    "a next commit that nobody accepted": "next",
}


async def answer(liar: Liar, how: str, swarm: Swarm) -> None:
    async def tell(remote: str, request: Any, stream: Any) -> None:
        said = ANSWERS[how]
        if said == "next":
            head = swarm["a"].rounds.head_of(request["after"] or 0) or bytes(32)
            said = [CommitCertificate(Commit((request["after"] or 0) + 1, head, 0, (), ("003-d",)), 0, FORGED)]
        await stream.send_object({"commits": len(said)} if isinstance(said, list) else said)
        for one in said if isinstance(said, list) else ():
            await send_message(stream, one)
        await stream.ended()

    await liar.link.serve(f"outerloop/1/{RUN}/commits", allowed=lambda peer: True, handler=tell)


@pytest.mark.parametrize("how", ANSWERS)
@virtual
async def test_one_ballot_of_a_later_round_and_an_answer_that_proves_nothing_change_nothing(how: str) -> None:
    """Each of these peers is up to date, and would take over the liar's weights if it believed that it is outrun."""
    swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None)
    await answer(liar, how, swarm)
    await swarm.until("abc", 4)
    for peer in "abc":
        await liar.say(peer, CommitCertificate(FALSE, 0, ()))
    await swarm.until("abc", 8)
    assert not any(node.rounds.needs_state for node in swarm.nodes.values())
    swarm.agree()
    for peer in "abc":
        trust = swarm[peer].rounds.context.trust
        assert {who for kind, who in trust.rejections.logged if kind == "ballots"} == {"003-d"}


@virtual
async def test_a_peer_that_reaches_only_a_liar_waits() -> None:
    swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None, absent_rounds=8)
    await lead_astray(liar)
    await swarm.until("abc", 2)
    swarm.part("c", "ab")
    await liar.say("c", CommitCertificate(FALSE, 0, ()))
    await asyncio.sleep(60)
    assert not swarm["c"].rounds.needs_state
    swarm.network.heal()
    done = swarm["c"].done
    await swarm.until("c", done + 2)


@virtual
async def test_a_peer_that_was_away_for_long_starts_from_the_roster_that_it_last_knew() -> None:
    """It is outrun, which a, b and c prove; then the liar alone answers it for a while."""
    swarm = await Swarm("abcde", absent_rounds=8).start()
    liar = Liar(swarm.network, "004-e")
    await donate(swarm)
    await swarm.until("abcde", 1)
    await swarm["e"].kill()
    await swarm["d"].kill()
    swarm.network.cut.discard("e")
    del swarm.nodes["e"]
    await liar.serve(lambda number: None)
    await lead_astray(liar)
    away = swarm.nodes.pop("d")
    await swarm.until("abc", ROUNDS_KEPT + 6)
    await away.restart()
    while away.error is None:
        await asyncio.sleep(1)
    assert isinstance(away.error, LogTruncated) and away.rounds.needs_state
    swarm.part("abc", "d")
    at = state_transfer_of(away)
    work = taking(at, away.names.values())
    await asyncio.sleep(60)
    assert not work.done() and away.rounds.context.chain.number <= 2
    swarm.network.heal()
    number, content = await asyncio.wait_for(work, 600)
    assert content == b"state %d" % number and ROUNDS_KEPT < number < FAR


@virtual
async def test_a_listed_newcomer_that_hears_only_a_liar_takes_nothing() -> None:
    """`initial_peers` names the liar alone: it is the only one of five on the list that the newcomer hears of."""
    swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None, absent_rounds=8)
    await lead_astray(liar)
    await donate(swarm)
    await swarm.until("abc", 2)
    node, at = await newcomer(swarm, [liar.name], allow="abcde")
    work = taking(at, [liar.name])
    await asyncio.sleep(60)
    assert not work.done() and node.rounds.last_commit is None
    work.cancel()
    names = [liar.name, *(one.name for one in swarm.nodes.values())]
    node.names |= {name.partition("-")[2]: name for name in names}
    number, content = await asyncio.wait_for(taking(at, names), 600)
    assert content == b"state %d" % number and number < FAR, "the other three are on the list, and are believed"


class Told(LogRpc):
    """A history in which every peer tells the same each time."""

    def __init__(self, link: MemoryTransport, logs: dict[str, list[CommitCertificate]]) -> None:
        super().__init__(link, run=RUN, allowed=bool, since=lambda after: ())
        self.logs = logs

    async def ask(self, peer: str, after: int | None) -> list[CommitCertificate]:
        return self.logs[peer]


@virtual
async def test_while_most_of_its_roster_are_level_no_list_makes_a_peer_believe_that_it_is_outrun() -> None:
    swarm = await Swarm("abc").start()
    await swarm.until("abc", 2)
    machine, found = swarm["a"].rounds.context.chain, list[int]()
    link = MemoryTransport(swarm.network, "a", allow="abcdefg")
    logs: dict[str, list[CommitCertificate]] = {f"00{index}-{letter}": [] for index, letter in enumerate("bc", 1)}
    logs |= {f"00{index}-{letter}": [CommitCertificate(FALSE, 0, ())] for index, letter in enumerate("defg", 3)}
    context = SimpleNamespace(
        trust=link.trust,
        chain=machine,
        others=lambda: list(logs),
        receive=lambda peer, decided: None,
        act=lambda event: None,
    )
    outcomes = SimpleNamespace(log_truncated=found.append)
    at = CatchUpTask(cast(RoundContext, context), Told(link, logs), cast(CommittedRounds, outcomes))
    await at.fetch("003-d")
    assert found == [] and {who for _, who in link.trust.rejections.logged} == set(logs) - {"001-b", "002-c"}
    for peer in ("001-b", "002-c"):
        logs[peer] = [CommitCertificate(FALSE, 0, ())]
    await at.fetch("003-d")
    assert found == [machine.number]


ROSTER = [f"00{index}-{letter}" for index, letter in enumerate("abcdefg")]


def signed(peers: list[str], number: int) -> CommitCertificate:
    return decided_by(peers, Commit(number, b"p" * 32, 0, (), tuple(sorted(peers))))


@settings(max_examples=150, deadline=None)
@given(size=st.integers(2, 7), seed=st.integers(0, 1 << 20))
def test_fewer_than_half_of_the_others_never_prove_that_a_peer_is_outrun_and_more_always_do(
    size: int, seed: int
) -> None:
    """Liars show commits with their own accepts, and with those of others that are made up or of another commit."""
    draw = random.Random(seed)
    own, *others = draw.sample(ROSTER, size)
    voters = voters_of(own.partition("-")[2], [own, *others], ())
    liars = others[: draw.randrange((len(others) + 1) // 2)]
    honest = [peer for peer in others if peer not in liars]
    number = 20
    past = signed(honest, number)
    lies = [signed(liars or ["009-x"], number + draw.randrange(1, 50))]
    lies.append(CommitCertificate(lies[0].commit, 0, tuple((peer, b"s" * 64) for peer in sorted(others))))
    lies.append(CommitCertificate(lies[0].commit, 1, past.accepts))
    names = [*lies[0].accepts, *((f"99{index}-{peer[4:]}", b"s" * 64) for index, peer in enumerate(others))]
    lies.append(CommitCertificate(lies[0].commit, 0, tuple(sorted(names))))
    logs = {peer.partition("-")[2]: [past, draw.choice(lies)] for peer in liars}
    assert not has_majority(peers_ahead(number, logs, SIGNER, voters=voters), voters)
    later = signed(honest, number + ROUNDS_KEPT + 1)
    assert has_majority(peers_ahead(number, {"whoever": [later]}, SIGNER, voters=voters), voters), (
        "their signatures are enough"
    )
    told = {peer.partition("-")[2]: [CommitCertificate(later.commit, 0, ())] for peer in honest}
    assert has_majority(peers_ahead(number, told, SIGNER, voters=voters), voters), "and so is their own word"


def test_one_signature_under_many_names_is_one_vote() -> None:
    commit = Commit(9, b"p" * 32, 0, (), ("003-d",))
    names = [f"{index:03d}-d" for index in range(50)]
    shown = CommitCertificate(commit, 0, tuple((name, accept_of(name, commit)) for name in names))
    voters = voters_of("a", ["000-a", "001-b", "002-c", "003-d"], ())
    assert peers_ahead(3, {"d": [shown]}, SIGNER, voters=voters) == {"d"}


class Counting(ToySigner):
    """Counts the signatures that it looks at."""

    looked_at = 0

    def verify(self, *said: Any) -> bool:
        self.looked_at += 1
        return super().verify(*said)


def test_signatures_that_a_liar_makes_up_cost_one_check_a_voter() -> None:
    """Names are free, ids are not: 1024 names of the four others stand under each of its 8 commits."""
    names = sorted(f"{index:03d}-{'abcd'[index % 4]}" for index in range(MAX_PEERS))
    voters = voters_of("e", [f"00{index}-{letter}" for index, letter in enumerate("abcdefg")], ())
    told = [CommitCertificate(signed(["003-d"], number).commit, 0, tuple((name, bytes(64)) for name in names)) for
            number in range(10, 10 + ROUNDS_KEPT)]  # fmt: skip
    signer = Counting("e")
    assert peers_ahead(3, {"d": told}, signer, voters=voters) == {"d"} and signer.looked_at <= 3


def test_where_most_say_that_they_are_past_it_no_signature_is_looked_at() -> None:
    voters, signer = voters_of("a", ["000-a", "001-b", "002-c", "003-d"], ()), Counting("a")
    later = signed(["001-b", "002-c", "003-d"], 9)
    assert peers_ahead(3, {"b": [later], "c": [later]}, signer, voters=voters) == {"b", "c"} and not signer.looked_at


def test_one_of_many_forged_join_requests_is_checked() -> None:
    learners = sorted(f"{index:03d}-x{index}" for index in range(MAX_PEERS - 1))
    hard_state = HardState.first(session=SESSION, peer="000-a", roster=["000-a"])
    participants = tuple(Participant.of(peer, b"p") for peer in sorted(["000-a", *learners]))
    asks = tuple((peer, bytes(64)) for peer in learners)
    commit, signer = Commit(0, hard_state.head.digest, 0, participants, ("000-a",), asks), Counting("000-a")
    why = commit_error(hard_state, commit, signer, min_peers=1, absent_rounds=2)
    assert why == f"commit 0 includes {learners[0]}, which has not asked to join" and signer.looked_at == 1


@pytest.mark.parametrize(
    ("answer", "found"),
    [("b", False), ("bc", True), ("bd", True), ("bdxyz", True), ("bxyz", False), ("xyz", False), ("", False)],
)
def test_an_anchor_needs_more_than_half_of_the_list_and_not_of_those_that_answer(answer: str, found: bool) -> None:
    """Of a, b, c, d, the first of which asks; x, y and z are on no list."""
    voters = voters_of("a", (), "abcd")
    head = decided_by("bcd", Commit(9, b"p" * 32, 0, (), ("b", "c", "d")))
    assert (newest_provable_commit({peer: [head] for peer in answer}, SIGNER, voters=voters) is not None) == found


def test_a_newcomer_goes_by_what_it_remembers_where_that_is_the_newest() -> None:
    known = Commit(9, b"p" * 32, 0, (), ("b", "c", "d"))
    after = decided_by("bc", Commit(10, known.digest, 0, (), ("b", "c", "d")))
    voters = voters_of("a", (), "abcd")
    assert newest_provable_commit({"d": [after]}, SIGNER, voters=voters, known=known) == after.commit, (
        "signed by most of its roster"
    )
    assert newest_provable_commit({"d": [signed(["003-d"], 50)]}, SIGNER, voters=voters, known=known) == known
