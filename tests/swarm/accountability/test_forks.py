"""Two decided commits of one round: whoever lied is named by the two alone, and all go on with the same one."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.access.signatures import KeySigner
from outerloop.swarm.accountability.equivocation import EquivocationWatch
from outerloop.swarm.accountability.evidence import guilty
from outerloop.swarm.accountability.expulsion import read_register
from outerloop.swarm.consensus.commit import Commit, Participant, genesis, next_demoted, turns
from outerloop.swarm.consensus.forks import fork_point, forked_earlier, is_better
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.statements import accept, promise
from outerloop.swarm.consensus.validity import certificate_error
from outerloop.swarm.consensus.votes import ChainLink, CommitCertificate, Pledge, linked
from outerloop.swarm.gather.committed_rounds import LogTruncated
from outerloop.swarm.membership.mailbox import Mailbox
from tests.support.swarm.fork_scene import Equivocator, decided_by, two_commits, until_it_leads
from tests.support.swarm.gather_scene import RUN, Swarm
from tests.support.swarm.signed_statements import SESSION, sign, signatures_of
from tests.support.swarm.virtual_clock import virtual

ROSTER = ("000-a", "001-b", "002-c", "003-d", "004-e")
GENESIS = genesis(SESSION, ROSTER)
ANYBODY = signatures_of("z")


def commit(letter: str, *, after: Commit = GENESIS, view: int = 0) -> Commit:
    payload = Participant.of("000-a", letter.encode())
    demoted = next_demoted(SESSION, after, view, ROSTER)
    return Commit(after.number + 1, after.digest, view, (payload,), ROSTER, (), demoted)


def decided(
    of: Commit, by: str, *, view: int = 0, promised: dict[str, tuple[int, bytes] | None] | None = None
) -> CommitCertificate:
    """By these letters; in a view after the first with the promises that made it possible: letter -> what it told."""
    names = [name for name in ROSTER if name[-1] in by]
    accepts = tuple((name, sign(name, accept(of.number, of.parent, view, of.digest)).signature) for name in names)
    return CommitCertificate(of, view, accepts, _links(of, view, promised or {}) if view else ())


def _links(of: Commit, view: int, promised: dict[str, tuple[int, bytes] | None]) -> tuple[ChainLink, ...]:
    pledges = []
    for name in [name for name in ROSTER if name[-1] in promised]:
        told = promised[name[-1]]
        pledges.append(Pledge(name, told, sign(name, promise(of.number, of.parent, view, told)).signature))
    shown = {of.view: (), view: tuple(pledges)}
    return tuple(ChainLink(when, why, _led(of, when)) for when, why in sorted(shown.items()))


def _led(of: Commit, view: int) -> bytes:
    """The accept of the leader."""
    first = turns(SESSION, of.number, ROSTER)[view % len(ROSTER)]
    return sign(first, accept(of.number, of.parent, view, of.digest)).signature


def liars(one: CommitCertificate, other: CommitCertificate) -> set[str]:
    """Whom somebody finds who looks at both, its witness and all."""
    signatures, watch, found = signatures_of("z"), EquivocationWatch(SESSION), []
    signatures.witness = lambda *said: found.append(watch.heard(*said))
    for decided in (one, other):
        certificate_error(GENESIS, decided, KeySigner(signatures, session=SESSION, own="z"))
    evidence = [one for one in found if one]
    assert all(guilty(one, ANYBODY) == one.peer for one in evidence)
    return {one.peer for one in evidence}


X, Y = commit("X"), commit("Y")


def test_peers_that_accepted_both_commits_in_one_view_are_named() -> None:
    assert liars(decided(X, "abc"), decided(Y, "cde")) == {"002-c"}
    assert liars(decided(X, "abcd"), decided(Y, "bcde")) == {"001-b", "002-c", "003-d"}


def test_a_promise_that_hides_an_accepted_proposal_is_named() -> None:
    first = decided(X, "abc")
    later = commit("Y", view=1)
    assert liars(first, decided(later, "cde", view=1, promised={"c": None, "d": None, "e": None})) == {"002-c"}


def test_a_commit_that_was_proposed_again_names_nobody() -> None:
    again = decided(X, "cde", view=1, promised={"c": (0, X.digest), "d": None, "e": (0, X.digest)})  # e led
    assert liars(decided(X, "abc"), again) == set()
    assert liars(again, again) == set()


def test_signatures_that_are_not_theirs_name_nobody() -> None:
    """A forged statement of a peer does not hide a true one either."""
    one, other = decided(X, "abc"), decided(Y, "cde")
    forged = CommitCertificate(Y, 0, tuple((name, bytes(64)) for name in ROSTER))
    assert liars(one, forged) == set()
    mixed = CommitCertificate(Y, 0, (("001-b", bytes(64)), *other.accepts))
    assert liars(one, mixed) == {"002-c"}


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from("abcde"), min_size=3), st.sets(st.sampled_from("abcde"), min_size=3), st.booleans())
def test_two_majorities_always_name_a_liar_and_none_but_liars(one: set[str], other: set[str], later: bool) -> None:
    """Whoever is in both lied: an honest one votes once, and tells of it."""
    first = decided(X, "".join(one))
    if later:
        told = dict.fromkeys(other)
        second = decided(commit("Y", view=1), "".join(other), view=1, promised=told)
    else:
        second = decided(Y, "".join(other))
    named = {name[-1] for name in liars(first, second)}
    assert named and named == one & other


def test_all_prefer_the_same_of_any_number_of_commits() -> None:
    found = [X, Y, commit("Z", view=2), commit("V", view=2), commit("W", view=1)]
    for some in permutations(found):
        best = [one for one in some if all(is_better(one, other) for other in some if other is not one)]
        assert best == [min(found[:2], key=lambda one: one.digest)], "the lower view, then the smaller digest"
    for one, other, third in permutations(found, 3):
        assert is_better(one, other) != is_better(other, one), "whatever certificates they have"
        assert not (is_better(one, other) and is_better(other, third)) or is_better(one, third)


def chain(letters: str, *, after: list[CommitCertificate]) -> list[CommitCertificate]:
    out = list(after)
    for letter in letters:
        out.append(decided(commit(letter, after=out[-1].commit), "abc"))
    return out


START = [CommitCertificate(GENESIS, 0, ())]


def test_chains_part_where_they_first_differ() -> None:
    trunk = chain("AB", after=START)
    left, right = chain("CDE", after=trunk), chain("FG", after=trunk)
    found = fork_point(left, right)
    assert found == (trunk[2], left[3], right[3])
    assert fork_point(right, left) == (trunk[2], right[3], left[3])
    assert linked(left) and not linked(right[::-1]) and not linked([*left, right[3]]) and not linked([])


@pytest.mark.parametrize(("ours", "theirs"), [("CDE", "CD"), ("CD", "CDE"), ("", "C"), ("", "")])
def test_a_chain_that_is_longer_is_the_same(ours: str, theirs: str) -> None:
    trunk = chain("AB", after=START)
    assert fork_point(chain(ours, after=trunk), chain(theirs, after=trunk)) is None


def test_logs_that_do_not_reach_back_to_the_fork_show_nothing() -> None:
    trunk = chain("AB", after=START)
    left, right = chain("CDE", after=trunk), chain("FGH", after=trunk)
    for ours, theirs in ((left, right[4:]), (left[4:], right), (left[4:], right[4:]), (left[3:], right[3:])):
        assert fork_point(ours, theirs) is None and forked_earlier(ours, theirs)
    for ours, theirs in ((left[2:], right[3:]), (left[3:], right[2:])):
        assert fork_point(ours, theirs) is not None, "it is enough that one of them holds the last commit of both"
        assert not forked_earlier(ours, theirs)
    assert (
        not forked_earlier(left, left[4:])
        and not forked_earlier(left[:4], left[4:])
        and not forked_earlier(left[:3], left[5:])
    )
    assert forked_earlier(left[:4], right[4:]), "the commit before the first of a log is named by it"


# a fork, healed


async def forked() -> tuple[Swarm, Equivocator, HardState]:
    """Five peers, of which the liar led round r: a and b have landed one commit of it, c and d the other one."""
    swarm = Swarm("abcde")
    liar = Equivocator(swarm.network, swarm["e"].name)
    await liar.serve(lambda number: None)
    del swarm.nodes["e"]
    await swarm.start()
    hard_state = await until_it_leads(swarm, liar)
    for letters, of in zip(("ab", "cd"), two_commits(swarm, hard_state), strict=True):
        await decided_by(liar, letters, of)
    return swarm, liar, hard_state


@virtual
async def test_a_fork_expels_who_made_it_and_heals_to_one_chain() -> None:
    swarm, _, hard_state = await forked()
    number = hard_state.number
    while min(len(swarm[letter].landed) for letter in "abcd") <= number:
        await asyncio.sleep(0.01)
    assert swarm["a"].landed[number] == swarm["b"].landed[number] != swarm["c"].landed[number], "the attack works"
    await asyncio.sleep(60)
    machines = {letter: swarm[letter].rounds.context.chain for letter in "abcd"}
    assert all("e" not in swarm[letter].rounds.context.trust.allow for letter in "abcd")
    assert all(letter in swarm["a"].rounds.context.trust.allow for letter in "abcd")
    found = [{one.commit.number: one.commit.digest for one in machine.hard_state.log} for machine in machines.values()]
    assert all(one[number] == found[0][number] for one in found), "one chain"
    losers = [letter for letter in "abcd" if isinstance(swarm[letter].error, LogTruncated)]
    assert sorted(losers) in (list("ab"), list("cd")), "whose weights are of the other chain know it"


@virtual
async def test_after_a_fork_the_run_goes_on_and_takes_the_losers_back() -> None:
    swarm, _, hard_state = await forked()
    await asyncio.sleep(120)
    losers = [letter for letter in "abcd" if swarm[letter].error]
    winners = [letter for letter in "abcd" if letter not in losers]
    assert len(losers) == 2
    there = min(swarm[letter].done for letter in winners)
    assert there > hard_state.number + 1, "rounds are decided, with votes of those whose weights are of the other chain"
    for letter in losers:
        await take_over(swarm, letter, winners[0])
    await asyncio.sleep(300)
    last = min(max(swarm[letter].landed) for letter in "abcd")
    assert last > there + 5 and swarm["a"].who(last) == "abcd"
    assert len({tuple(swarm[letter].landed[last]) for letter in "abcd"}) == 1
    assert all(set(read_register(swarm[letter].disk).expelled) == {"e"} for letter in "abcd")


async def take_over(swarm: Swarm, letter: str, donor: str) -> None:
    """The state of a donor, as the exchange gets it (join.py)."""
    node, number = swarm[letter], max(swarm[donor].landed)
    log = swarm[donor].rounds.context.chain.hard_state.log
    decided = next(one for one in log if one.commit.number == number)
    await node.rounds.follow_from(decided, session=RUN)
    node.rounds.state_arrived()
    node.error = None
    node.landed = {known: swarm[donor].landed[known] for known in range(number + 1)}
    node.training = asyncio.create_task(node.train(number + 1))


@virtual
async def test_a_peer_that_changes_the_chain_offers_the_payload_it_has_signed() -> None:
    """It seals no other payload for a round, so the rounds that it has left would be without one of it."""
    swarm = await Swarm("abc").start()
    await swarm.until("abc", 3)
    rounds = swarm["a"].rounds
    while (known := rounds._payload_rpc.own.get(number := rounds.context.chain.number)) is None:  # noqa: SLF001
        await asyncio.sleep(0.05)
    rounds.own_payloads.restart(number)
    assert rounds._payload_rpc.own.get(number) == known  # noqa: SLF001


@virtual
async def test_a_message_that_was_withdrawn_and_posted_again_reaches_those_that_wait() -> None:
    board: Mailbox[str] = Mailbox(keep=8)
    for number in (3, 4):
        board.post(number, f"left {number}")
    board.over(4)
    board.take_back(3)
    reading = asyncio.create_task(board.read(3))
    await asyncio.sleep(1)
    board.post(3, "other")
    assert await reading == "other" and await board.read(2) is None
