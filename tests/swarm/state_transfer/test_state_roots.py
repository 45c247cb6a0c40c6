"""A newcomer takes the state that a majority named in the chain of commits, whoever gives what and however fast."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.consensus.commit import MOST_LETTERS, Commit, Participant
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.gather.state_roots import CERTIFY_ROUNDS, StateRoots
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.state_transfer.donor import COPY_EVERY
from outerloop.swarm.transfer import signed_payload
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.validation import SIGNATURE_BYTES, MalformedMessage
from tests.support.swarm.gather_liar import Liar, swarm_with_liar
from tests.support.swarm.gather_scene import RUN, MemoryDisk, Swarm
from tests.support.swarm.memory_keys import trust_of
from tests.support.swarm.state_transfer_scene import donate, false_states, newcomer, taking
from tests.support.swarm.virtual_clock import run, virtual

RIGHT, WRONG = b"r" * 32, b"w" * 32
HASH = b"p" * 32


def commit(number: int, named: dict[str, tuple[int, bytes] | None], roster: str) -> Commit:
    """Who takes part and names what, by letter."""
    names = {letter: f"00{index}-{letter}" for index, letter in enumerate("abcdefgh")}
    participants = tuple(Participant(names[letter], HASH, 9, state) for letter, state in sorted(named.items()))
    return Commit(number, HASH, 0, participants, tuple(names[letter] for letter in roster))


def certified(roots: StateRoots, number: int) -> bytes | None:
    async def wait() -> bytes:
        return await asyncio.wait_for(roots.certified(number), 1)

    try:
        return run(wait())
    except TimeoutError:
        return None


def test_a_state_is_certified_by_more_than_half_of_the_roster_over_several_commits() -> None:
    roots = StateRoots(own="009-z")
    roots.add(commit(5, {"a": (4, RIGHT), "b": None}, "abcd"))
    assert certified(roots, 4) is None
    roots.add(commit(6, {"a": (4, RIGHT), "b": (4, RIGHT), "d": (4, WRONG)}, "abcd"))
    assert certified(roots, 4) is None and "2 peers have named the same" in roots.describe(4), "each peer counts once"
    roots.add(commit(7, {"c": (4, RIGHT)}, "abcd"))
    assert certified(roots, 4) == RIGHT


def test_peers_outside_the_roster_and_the_peer_itself_do_not_count() -> None:
    roots = StateRoots(own="002-c")
    roots.add(commit(5, {letter: (4, RIGHT) for letter in "acefgh"}, "abcd"))
    assert certified(roots, 4) is None
    roots.add(commit(6, {"d": (4, RIGHT)}, "abcd"))
    assert certified(roots, 4) == RIGHT, "two of the three others"


def test_a_state_of_its_own_or_a_later_commit_and_a_too_old_one_count_for_nothing() -> None:
    roots = StateRoots(own="009-z")
    for number in (5, 6, 5 - CERTIFY_ROUNDS - 1):
        roots.add(commit(5, {letter: (number, RIGHT) for letter in "abc"}, "abc"))
        assert not roots.votes and not roots.certified_states


def test_an_uncertified_state_is_given_up_and_dropped() -> None:
    roots = StateRoots(own="009-z")
    for number in range(5, 5 + CERTIFY_ROUNDS):
        roots.add(commit(number, {"a": (4, RIGHT), "b": (4, WRONG)}, "abc"))
    assert certified(roots, 4) is None
    roots.add(commit(4 + CERTIFY_ROUNDS + 1, {"a": None}, "abc"))
    with pytest.raises(
        ContentUnavailable, match=f"no majority named the same state as of commit 4 within {CERTIFY_ROUNDS} rounds"
    ):
        certified(roots, 4)
    assert not roots.votes


@settings(max_examples=150, deadline=None)
@given(peers=st.integers(1, 7), seed=st.integers(0, 1 << 20))
def test_no_minority_certifies_a_state_and_what_it_names_is_bounded(peers: int, seed: int) -> None:
    """Honest peers name the right state, some later than others; liars name whatever they like, again and again."""
    draw = random.Random(seed)
    roster = "abcdefgh"[:peers]
    liars = draw.sample(roster, (peers - 1) // 2)
    roots = StateRoots(own="009-z")
    states = [(number, WRONG) for number in range(3, 20)] + [(4, bytes([i]) * 32) for i in range(20)]
    for number in range(5, 5 + CERTIFY_ROUNDS):
        honest = {letter: draw.choice([None, (4, RIGHT)]) for letter in roster if letter not in liars}
        roots.add(commit(number, {**honest, **{letter: draw.choice(states) for letter in liars}}, roster))
        assert set(roots.certified_states.values()) <= {RIGHT}
        assert len(roots.votes) <= (len(liars) * CERTIFY_ROUNDS) + 1
    roots.add(commit(5 + CERTIFY_ROUNDS - 1, {letter: (4, RIGHT) for letter in roster if letter not in liars}, roster))
    assert roots.certified_states[4] == RIGHT


@virtual
async def test_a_state_root_is_sent_until_a_commit_includes_it() -> None:
    roots = StateRoots(own="000-a")
    assert await roots.named_in(5) is None
    roots.name(4, RIGHT)
    assert [await roots.named_in(number) for number in (4, 5, 6)] == [None, (4, RIGHT), (4, RIGHT)]
    roots.add(commit(5, {"a": None, "b": (4, RIGHT)}, "ab"))
    assert await roots.named_in(6) == (4, RIGHT)
    assert await roots.named_in(5 + CERTIFY_ROUNDS) is None, "too late"
    roots.add(commit(6, {"a": (4, RIGHT)}, "ab"))
    assert await roots.named_in(7) is None


@virtual
async def test_a_payload_waits_for_the_hash_of_the_state_and_not_for_long() -> None:
    roots = StateRoots(own="000-a")
    with roots.hashing():
        said = asyncio.create_task(roots.named_in(5))
        await asyncio.sleep(0.1)
        assert not said.done()
        roots.name(4, RIGHT)
    assert await said == (4, RIGHT)
    with roots.hashing():
        roots.name(5, WRONG)
        assert await asyncio.wait_for(roots.named_in(6), 10) == (5, WRONG)


# another chain


def test_state_roots_of_a_chain_that_was_left_are_forgotten() -> None:
    roots = StateRoots(own="000-a")
    roots.name(6, WRONG)
    roots.add(commit(6, {letter: (5, RIGHT) for letter in "bc"}, "abcd"))
    roots.add(commit(7, {letter: (6, WRONG) for letter in "bc"}, "abcd"))
    assert certified(roots, 5) == RIGHT and certified(roots, 6) == WRONG
    roots.leave(6)
    assert certified(roots, 5) == RIGHT and certified(roots, 6) is None and run(roots.named_in(8)) is None
    roots.name(5, RIGHT)
    roots.leave(6)
    assert run(roots.named_in(8)) == (5, RIGHT), "as of a commit of both chains"
    roots.add(commit(7, {letter: (6, RIGHT) for letter in "bc"}, "abcd"))
    assert certified(roots, 6) == RIGHT


@virtual
async def test_a_round_landed_on_a_chain_that_was_left_has_no_head() -> None:
    """Its copy is of the commit that was left, and the other chain has a commit of the same number."""
    swarm = await Swarm("abc").start()
    await swarm.until("abc", 3)
    rounds, number = swarm["a"].rounds, swarm["a"].done - 1
    [left] = [one.commit for one in rounds.context.chain.hard_state.log if one.commit.number == number]
    assert rounds.head_of(number) == left.digest
    rounds.outcomes.leave(number)
    rounds.outcomes.add(replace(left, view=left.view + 1))
    assert rounds.head_of(number) is None


def root_of(chain: list[int]) -> bytes:
    """Of the state as of the last commit of a chain."""
    return bytes(chain[-8:]).rjust(32)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["land", "copy", "hashed", "leave", "skip"]), max_size=25), st.randoms())
def test_no_peer_names_a_state_of_a_chain_that_it_has_left(events: list[str], draw: random.Random) -> None:
    """A chain is the letters of its commits; a copied state is hashed for as long as it takes."""
    roots, chain, hashing = StateRoots(own="000-a"), [0], list[Any]()
    for letter, event in enumerate(events, start=1):
        if event == "land":
            chain.append(letter)
        elif event == "copy" and not hashing:
            hashing = [roots.hashing(), len(chain) - 1, root_of(chain)]
            hashing[0].__enter__()
        elif event == "hashed" and hashing:
            context, *state = hashing
            roots.name(*state)
            context.__exit__(None, None, None)
            hashing = []
        elif event == "leave" and len(chain) > 1:
            number = draw.randrange(1, len(chain))
            chain = [*chain[:number], letter]
            roots.leave(number)
        elif event == "skip":
            chain = [letter] * (len(chain) + 3)
            roots.withdraw(0)
        named = roots.own_state
        assert named is None or named[1] == root_of(chain[: named[0] + 1])


# the seal and the store


def test_the_seal_covers_the_state_and_a_calm_payload_has_no_byte_of_it() -> None:
    signatures = trust_of("a").signatures

    def doubt(content: bytes, state: Any) -> str:
        return run(signed_payload.payload_error(content, signatures, session=RUN, number=5, peer="000-a", state=state))

    for state in (None, (4, RIGHT)):
        content = signed_payload.sign_payload(b"payload", signatures, session=RUN, number=5, peer="000-a", state=state)
        assert len(content) == SIGNATURE_BYTES + 7
        wrong = [None, (4, RIGHT), (4, WRONG), (5, RIGHT)]
        assert doubt(content, state) == "" and all(doubt(content, one) for one in wrong if one != state)
    assert Participant("000-a", HASH, 9).to_list() == ["000-a", HASH, 9]


def test_a_participant_with_a_state_comes_back_and_what_is_none_is_refused() -> None:
    one = Participant("000-a", HASH, 9, (4, RIGHT))
    assert Participant.from_list(one.to_list()) == one != Participant("000-a", HASH, 9)
    assert commit(5, {"a": (4, RIGHT)}, "a").digest != commit(5, {"a": None}, "a").digest
    plain = ["000-a", HASH, 9]
    for state in ([4], [4, RIGHT, 0], [-1, RIGHT], [1.0, RIGHT], [4, b"short"], [4, None]):
        with pytest.raises(MalformedMessage):
            Participant.from_list([*plain, *state])
    with pytest.raises(MalformedMessage, match="must have a name of at most 64 characters"):
        Participant.from_list(["a" * (MOST_LETTERS + 1), HASH, 9, 4, RIGHT])
    twins = [Participant("000-a", HASH, 9, state) for state in ((4, WRONG), None, (4, RIGHT), (3, WRONG))]
    assert [other.state for other in sorted(twins)] == [None, (3, WRONG), (4, RIGHT), (4, WRONG)]


@virtual
async def test_a_payload_is_found_again_after_a_restart_with_the_state_that_it_names() -> None:
    disk = MemoryDisk()
    both = [Participant.of("0" * MOST_LETTERS, b"content", state=state) for state in (None, (4, RIGHT))]
    for one in both:
        await RoundStore(disk).put(5, one, b"content")
    assert RoundStore(disk).since(5) == [(5, one) for one in both] and max(map(len, disk)) <= 255 - 16


# newcomers


async def ask_for(liar: Liar, peer: str, number: int) -> None:
    """Demand a state, and hang up after a while."""
    try:
        async with liar.link.open_stream(peer, f"outerloop/1/{RUN}/snapshot") as stream:
            await stream.send_object({"number": number})
            await asyncio.sleep(1)
    except BrokenStream:
        pass


@pytest.mark.parametrize("slow", [False, True], ids=["all give theirs", "the honest give nothing for long"])
@virtual
async def test_a_newcomer_takes_the_state_of_the_majority_whatever_a_liar_asks_for_and_gives(slow: bool) -> None:
    """The liar fills what may be wanted of the honest with far commits, and names weights of its own at once."""
    swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None, absent_rounds=8)
    await donate(swarm)
    await false_states(liar, swarm)
    await swarm.until("abc", 3)
    for index in range(8):
        await asyncio.gather(*(ask_for(liar, peer, 3000 + index) for peer in "abc"))
    if slow:
        for node in swarm.nodes.values():
            swarm.network.handlers[node.id, f"outerloop/1/{RUN}/snapshot"] = silent(swarm, node.id)
    names = [liar.name, *(node.name for node in swarm.nodes.values())]
    _, at = await newcomer(swarm, names)
    work = taking(at, names)
    if slow:
        await asyncio.sleep(150)
        assert not work.done()
        for node in swarm.nodes.values():
            handlers = swarm.network.handlers
            handlers[node.id, f"outerloop/1/{RUN}/snapshot"] = handlers[node.id, "kept"]
    number, content = await asyncio.wait_for(work, 600)
    assert content == b"state %d" % number and number < 100
    assert all(len(node.copies) <= node.done // COPY_EVERY * 2 + 2 for node in swarm.nodes.values())  # type: ignore[attr-defined]


def silent(swarm: Swarm, peer: str) -> Any:
    """What gives nothing, as a donor does that has not come to it."""
    handlers = swarm.network.handlers
    handlers[peer, "kept"] = handlers[peer, f"outerloop/1/{RUN}/snapshot"]

    async def tell(remote: str, stream: Any) -> None:
        await stream.receive_object()
        await asyncio.sleep(60)
        await stream.send_object({})
        await stream.ended()

    return tell


def test_a_state_that_most_donors_give_but_the_commits_do_not_certify_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        swarm = await Swarm("abc").start()
        await donate(swarm, forgers="ab")
        await swarm.until("abc", 2)
        names = [node.name for node in swarm.nodes.values()]
        _, at = await newcomer(swarm, names)
        work = taking(at, names)
        while not work.done() and "not the one that the commits certify" not in caplog.text:
            await asyncio.sleep(0.1)
        assert not work.done(), "2 of 3 give b'forged'"
        work.cancel()

    run(scene())


def test_where_no_round_follows_the_newcomer_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        swarm = await Swarm("abc").start()
        await donate(swarm)
        await swarm.until("abc", 2)
        names = [node.name for node in swarm.nodes.values()]
        node, at = await newcomer(swarm, names)
        work = taking(at, names)
        while not any(node.copies for node in swarm.nodes.values()):  # type: ignore[attr-defined]
            await asyncio.sleep(0.1)
        for one in swarm.nodes.values():
            one.training.cancel()
        with caplog.at_level(logging.WARNING):
            await asyncio.sleep(100)
        assert not work.done() and not node.rounds.needs_state
        work.cancel()

    run(scene())
    said = [record.getMessage() for record in caplog.records if "waiting for later rounds" in record.getMessage()]
    assert 1 <= len(said) <= 2 and "0 peers have named the same state in a commit" in said[0]
    assert said[0].endswith("If the run ends before the state is certified, it is not transferred")


@virtual
async def test_nobody_names_a_state_where_none_was_asked_for() -> None:
    swarm = await Swarm("abc").start()
    await donate(swarm)
    await swarm.until("abc", 5)
    for node in swarm.nodes.values():
        assert not node.copies  # type: ignore[attr-defined]
        log = node.rounds.context.chain.hard_state.log
        assert all(one.state is None for decided in log for one in decided.commit.participants)
