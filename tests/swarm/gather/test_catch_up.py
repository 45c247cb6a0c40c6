"""A peer that missed commits gets them soon, whoever is silent, and whoever says that it is ahead and is not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outerloop.swarm.consensus.commit import Commit, genesis
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.catch_up import CatchUpTask
from outerloop.swarm.gather.committed_rounds import CommittedRounds
from outerloop.swarm.gather.log_rpc import LogRpc
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.swarm.timeouts import ASK_S, HEDGE_S, HISTORY_S, RETRY_S
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.toy_signatures import SESSION, ToySigner, decided_by
from tests.support.swarm.virtual_clock import now_s, run, virtual

OWN = "000-a"


@dataclass
class Other:
    """A peer that knows the chain up to this commit, and takes so long to answer."""

    upto: int = 0
    wait_s: float = 0.05


class Scene(LogRpc):
    """One peer whose chain ends with commit 0, and others of whom a test says how far they are.

    `asked`: when, whom, and for the commits after which.
    """

    def __init__(self, letters: str = "abcde") -> None:
        link = MemoryTransport(MemoryNetwork(), "a")
        super().__init__(link, run=SESSION, allowed=bool, since=lambda after: ())
        self.roster = [f"{index:03d}-{letter}" for index, letter in enumerate(letters)]
        self.hard_state = HardState.first(session=SESSION, peer=OWN, roster=self.roster)
        self.chain = chain(self.hard_state.head, self.roster, 40)
        self.hard_state = self.hard_state.learned(self.chain[0])
        self.others = {name: Other() for name in self.roster[1:]}
        self.asked: list[tuple[float, str, int | None]] = []
        self.outrun: list[int] = []
        self.parted: list[tuple[str, list[CommitCertificate]]] = []
        self.refusals = link.trust.rejections
        self.next_commit_error = lambda decided: ""
        context = SimpleNamespace(
            trust=link.trust,
            chain=self,
            others=lambda: list(self.others),
            receive=self.receive,
            act=lambda event: event(self),
        )
        outcomes = SimpleNamespace(log_truncated=self.outrun.append)
        self.at = CatchUpTask(cast(RoundContext, context), self, cast(CommittedRounds, outcomes))

    signer = ToySigner(OWN)

    @property
    def upto(self) -> int:
        return self.hard_state.head.number

    def receive(self, peer: str, decided: CommitCertificate) -> None:
        if decided.commit.number == self.hard_state.number:
            self.hard_state = self.hard_state.learned(decided)

    def compare_log(self, peer: str, log: list[CommitCertificate]) -> None:
        self.parted.append((peer, list(log)))

    def log_of(self, peer: str) -> list[CommitCertificate]:
        upto = self.others[peer].upto
        return self.chain[max(0, upto + 1 - ROUNDS_KEPT) : upto + 1]

    async def ask(self, peer: str, after: int | None) -> list[CommitCertificate]:
        self.asked.append((now_s(), peer, after))
        async with asyncio.timeout(HISTORY_S):
            await asyncio.sleep(self.others[peer].wait_s)
        return [one for one in self.log_of(peer) if after is None or one.commit.number > after]

    async def until(self, upto: int, *, limit_s: float) -> None:
        """Until this peer knows that commit."""
        async with asyncio.timeout(limit_s):
            while self.upto < upto:
                await asyncio.sleep(0.01)


def chain(head: Commit, roster: list[str], count: int, *, view: int = 0) -> list[CommitCertificate]:
    made: list[CommitCertificate] = []
    for _ in range(count):
        head = Commit(head.number + 1, head.digest, view, (), tuple(roster))
        made.append(decided_by(roster, head, view))
    return made


def scene(work: Any) -> None:
    async def go() -> None:
        await work(Scene())

    run(go())


def test_a_silent_peer_that_says_that_it_is_ahead_delays_a_missed_commit_by_less_than_a_second() -> None:
    async def work(it: Scene) -> None:
        it.others["004-e"].wait_s = 1e6
        for name in ("001-b", "002-c", "003-d"):
            it.others[name].upto = 1
        it.at.fetch_from("004-e")
        await it.until(1, limit_s=1)

    scene(work)


def test_while_it_is_silent_others_that_are_ahead_are_followed_too() -> None:
    async def work(it: Scene) -> None:
        it.others["004-e"].wait_s = 1e6
        it.at.fetch_from("004-e")
        for upto in range(1, 12):
            await asyncio.sleep(2)
            for name in ("001-b", "002-c", "003-d"):
                it.others[name].upto = upto
            it.at.fetch_from("001-b")
            await it.until(upto, limit_s=1)
        assert len([who for _, who, _ in it.asked if who == "004-e"]) == 1

    scene(work)


@virtual
async def test_as_many_silent_peers_as_there_may_be_cost_two_seconds() -> None:
    it = Scene("abcdefghi")
    for name in it.roster[1:5]:
        it.others[name].wait_s = 1e6
    for name in it.roster[5:]:
        it.others[name].upto = 1
    it.at.fetch_from("001-b")
    await it.until(1, limit_s=4 * HEDGE_S)


def test_the_only_one_that_knows_more_is_waited_for_however_slow_it_is() -> None:
    async def work(it: Scene) -> None:
        it.others["003-d"] = Other(upto=1, wait_s=HISTORY_S - 1)
        it.at.fetch_from("003-d")
        await it.until(1, limit_s=HISTORY_S)

    scene(work)


def test_a_peer_that_falsely_claims_to_be_ahead_causes_few_requests_and_no_delay() -> None:
    async def work(it: Scene) -> None:
        for _ in range(400):
            it.at.fetch_from("004-e")
            await asyncio.sleep(0.05)
        assert len(it.asked) <= len(it.others) * 20 / RETRY_S[1]
        for name in ("001-b", "002-c", "003-d"):
            it.others[name].upto = 1
        for _ in range(20):
            it.at.fetch_from("004-e")
            it.at.fetch_from("001-b")
            await asyncio.sleep(0.05)
        assert it.upto == 1

    scene(work)


def test_a_peer_that_is_ahead_alone_is_asked_alone_and_again_at_once() -> None:
    async def work(it: Scene) -> None:
        for upto in range(1, 20):
            it.others["003-d"].upto = upto
            it.at.fetch_from("003-d")
            await it.until(upto, limit_s=0.1)
        assert {who for _, who, _ in it.asked} == {"003-d"} and len(it.asked) == 19

    scene(work)


def test_a_chain_that_has_parted_is_compared_though_it_is_longer() -> None:
    """Its next commit does not follow the head here: that may be a lie, or the fork that one made."""

    async def work(it: Scene) -> None:
        other = chain(genesis(SESSION, it.roster), it.roster, 4, view=1)
        it.chain[: len(other)] = other
        it.others["003-d"].upto = 3
        for _ in range(20):
            it.at.fetch_from("003-d")
            await asyncio.sleep(0.1)
        assert it.upto == 0 and it.parted == [("003-d", other)], "its whole log, once in ASK_S"
        assert {who for _, who in it.refusals.logged} == {"003-d"}
        await asyncio.sleep(ASK_S)
        it.at.fetch_from("003-d")
        await asyncio.sleep(2)
        assert len(it.parted) == 2

    scene(work)


@pytest.mark.parametrize("forged", [False, True], ids=["it follows", "nobody accepted it"])
def test_a_next_commit_that_follows_the_head_is_compared_with_nothing(forged: bool) -> None:
    async def work(it: Scene) -> None:
        it.others["003-d"].upto = 1
        if forged:
            it.chain[1] = CommitCertificate(it.chain[1].commit, 0, ())
        it.at.fetch_from("003-d")
        await asyncio.sleep(5)
        assert not it.parted and it.upto == int(not forged)
        assert len(it.refusals.logged) == int(forged)

    scene(work)


def test_an_answer_about_an_older_head_makes_no_peer_fall_behind() -> None:
    """The first that is asked keeps the answer of all the others waiting; meanwhile the commits come another way."""

    async def work(it: Scene) -> None:
        it.others["004-e"].wait_s = 1e6
        for name in ("001-b", "002-c", "003-d"):
            it.others[name].upto = 20
        it.at.fetch_from("004-e")
        await asyncio.sleep(5)
        for decided in it.chain[1:19]:
            it.receive("001-b", decided)
        await asyncio.sleep(HISTORY_S)
        assert it.outrun == []
        it.at.fetch_from("001-b")
        await it.until(20, limit_s=1)

    scene(work)


def test_most_that_are_past_it_and_no_log_that_reaches_back_outrun_a_peer_whoever_is_silent() -> None:
    async def work(it: Scene) -> None:
        it.others["004-e"].wait_s = 1e6
        for name in ("001-b", "002-c", "003-d"):
            it.others[name].upto = 20
        it.at.fetch_from("001-b")
        await asyncio.sleep(3)
        assert it.outrun == [1]

    scene(work)
