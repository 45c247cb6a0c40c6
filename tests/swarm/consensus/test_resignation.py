"""A peer that leaves resigns: the others decide without its vote, and never does it vote after that it has resigned."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.effects import Effect, Persist, Reject, Send
from outerloop.swarm.consensus.hotstuff.chain import HotStuffChain
from outerloop.swarm.consensus.messages import Accept, Propose, Resigned, from_map, to_map
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.resignation import Resignation
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.statements import resign
from outerloop.swarm.consensus.validity import certificate_error, commit_error
from outerloop.swarm.validation import MAX_PEERS, MalformedMessage
from tests.support.swarm.consensus_world import RUN, World, payload
from tests.support.swarm.toy_signatures import ToySigner, toy_signature

LONE = GatherPolicy(min_peers=1, min_fraction=0.0)
PROTOCOLS = pytest.mark.parametrize("protocol", [PaxosChain, HotStuffChain])


def world_of(
    members: str, outsiders: str = "", *, protocol: type[Chain] = PaxosChain, policy: GatherPolicy = LONE
) -> World:
    class OfProtocol(World):
        pass

    OfProtocol.protocol = protocol
    world = OfProtocol(members, outsiders, gather_policy=policy, absent_rounds=8, rng=random.Random(1))
    if protocol is HotStuffChain:
        world.monitor = Applied()  # type: ignore[assignment]
    return world


class Applied:
    """What was applied: one commit a round."""

    def __init__(self) -> None:
        self.chosen: dict[int, Commit] = {}

    def saved(self, *_: object) -> None: ...

    def said(self, *_: object) -> None: ...

    def did_apply(self, commit: Commit) -> None:
        assert self.chosen.setdefault(commit.number, commit) == commit


def play(world: World, *peers: str) -> None:
    """These make their payloads, which all get; the timers of the gather and of some views fire."""
    number = max(world[peer].number for peer in world.up)
    for owner in peers:
        for peer in world.up:
            world.give(peer, number, payload(owner, number))
    for _ in range(6):
        world.deliver_all()
        for event in ("grace", "deadline"):
            for peer in world.up:
                world.event(peer, lambda machine, event=event: getattr(machine, event)(number))
        world.deliver_all()
        if any(world[peer].number > number for peer in world.up):
            return
        for peer in world.up:
            world.event(peer, lambda machine: machine.timeout(number, machine.view))
        world.deliver_all()
        for peer in world.up:
            world.event(peer, lambda machine: machine.reports_over(number, machine.view))


def leave(world: World, *peers: str) -> None:
    for peer in peers:
        world.event(peer, lambda machine: machine.resign())
    world.deliver_all()
    for peer in peers:
        world.crash(peer)


def come_back(world: World, peer: str) -> None:
    """From its disk, and up to date."""
    world.start(peer)
    others = [other for other in world.up if other != peer]
    world.fetch(peer, others[0])
    world.event(peer, lambda machine: machine.request_join())
    world.deliver_all()


def resignations(outputs: list[Effect]) -> list[Resignation]:
    sent = [one.message for one in outputs if isinstance(one, Send)]
    return [one for message in sent if isinstance(message, Resigned) for one in message.resignations]


def votes(outputs: list[Effect]) -> list[type]:
    return [type(one.message) for one in outputs if isinstance(one, Send) and not isinstance(one.message, Resigned)]


@PROTOCOLS
def test_one_of_two_leaves_and_the_other_continues_and_newcomer_and_leaver_can_join(
    protocol: type[Chain],
) -> None:
    world = world_of("ab", "c", protocol=protocol)
    play(world, "a", "b")
    assert world["a"].number == 1
    leave(world, "b")
    play(world, "a")
    assert world["a"].number == 2 and world["a"].hard_state.roster == ("a",), "alone from the round in which it left"
    play(world, "a")
    assert world["a"].number == 3
    world.fetch("c", "a")
    world.event("c", lambda machine: machine.request_join())
    world.deliver_all()
    play(world, "a", "c")
    assert world["a"].hard_state.roster == ("a", "c")
    come_back(world, "b")
    play(world, "a", "b", "c")
    assert world["a"].hard_state.roster == ("a", "b", "c")
    assert world["b"].votes and world["b"].number == 5
    leave(world, "c")
    play(world, "a", "b")
    assert world["a"].number == 6 and world["a"].hard_state.roster == ("a", "b"), "its vote counts as before"


def test_without_a_resignation_the_other_one_waits() -> None:
    world = world_of("ab")
    play(world, "a", "b")
    world.crash("b")
    play(world, "a")
    assert world["a"].number == 1


def test_what_was_proposed_before_is_decided_without_the_leaver_and_the_next_commit_drops_it() -> None:
    world = world_of("ab")
    leader = world["a"].hard_state.leader(0)
    other = "b" if leader == "a" else "a"
    for owner in "ab":
        world.give(leader, 0, payload(owner, 0))
    assert isinstance(world.network.pop()[2], Propose), "it has accepted its own proposal, in whose roster both are"
    leave(world, other)
    head = world[leader].hard_state.head
    assert head.number == 0 and head.roster == ("a", "b")
    play(world, leader)
    assert world[leader].number == 2 and world[leader].hard_state.roster == (leader,), "it covers two rounds"


@PROTOCOLS
def test_a_peer_that_has_voted_stays_until_the_round_is_decided(protocol: type[Chain]) -> None:
    world = world_of("abc", protocol=protocol)
    leader = world["a"].hard_state.leader(0)
    voter = next(peer for peer in "abc" if peer != leader)
    for owner in "abc":
        world.give(leader, 0, payload(owner, 0))
        world.give(voter, 0, payload(owner, 0))
    while not world[voter].hard_state.has_voted:
        world.deliver(next(index for index, (_, to, _) in enumerate(world.network) if to == voter))
    assert resignations(world[voter].resign()) == [] and world[voter].waits_to_resign
    world.deliver_all()
    assert world[voter].number == 1 and not world[voter].votes and not world[voter].waits_to_resign
    assert [one.number for one in world[voter].hard_state.counted_resignations] == [1]


def test_a_resignation_is_on_disk_before_it_is_sent_and_binds_after_a_restart() -> None:
    world = world_of("ab")
    outputs = world["b"].resign()
    assert [type(one) for one in outputs] == [Persist, Send] and resignations(outputs)
    assert isinstance(outputs[0], Persist)
    disk = HardState.from_bytes(outputs[0].hard_state.to_bytes(), session=RUN, peer="b")
    assert disk == outputs[0].hard_state
    again = PaxosChain(disk, signer=ToySigner("b"), gather_policy=LONE, absent_rounds=8)
    for owner in "ab":
        assert votes(again.payload_stored(0, payload(owner, 0))) == []
    assert votes(again.timeout(0, 0)) == [] and not again.votes
    assert resignations(again.request_join()) == resignations(outputs), "it is sent again by who has returned"


@pytest.mark.parametrize("crash_after", range(2))
def test_a_crash_before_it_is_sent_leaves_a_vote_or_a_resignation(crash_after: int) -> None:
    world = world_of("ab")
    world.event("b", lambda machine: machine.resign(), crash_after=crash_after)
    assert world.network == []
    play(world, "a")
    assert world["a"].number == 0, "the other one has not heard of it"
    world.start("b")
    world.event("b", lambda machine: machine.request_join())
    world.deliver_all()
    play(world, "a", "b")
    assert world["a"].number > 0
    assert bool(world["a"].hard_state.log[1].resignations) is (crash_after == 1)


def test_it_does_not_vote_in_the_next_round_either_and_votes_in_the_one_after() -> None:
    world = world_of("abc", policy=GatherPolicy(min_peers=2, min_fraction=0.0))
    world.event("c", lambda machine: machine.resign())
    world.network.clear()  # neither of the others hears of it
    world.crash("c")
    for _ in range(2):
        play(world, "a", "b")
    assert all(decided.commit.roster == ("a", "b", "c") for decided in world["a"].hard_state.log)
    world.start("c")
    votes = [world["c"].votes]
    for decided in world["a"].hard_state.log[1:]:
        world["c"].receive("a", decided)
        votes.append(world["c"].votes)
    assert world["c"].number == 2 and votes == [False, False, True]


def test_an_old_resignation_is_worth_nothing_once_its_peer_is_back() -> None:
    world = world_of("ab")
    play(world, "a", "b")
    old = Resignation("b", 1, world["a"].hard_state.head.digest, b"")
    leave(world, "b")
    play(world, "a")
    come_back(world, "b")
    play(world, "a", "b")
    assert world["a"].hard_state.roster == ("a", "b") and world["a"].number == 3
    signed = old._replace(signature=toy_signature("b", old.statement))
    world.event("a", lambda machine: machine.receive("b", Resigned(3, machine.hard_state.head.digest, (signed,))))
    assert world["a"].hard_state.remaining == ("a", "b")
    world.crash("b")
    play(world, "a")
    assert world["a"].number == 3, "one of two does not decide"


@pytest.mark.parametrize(
    "bend",
    [
        lambda one: one._replace(signature=toy_signature("a", one.statement)),
        lambda one: one._replace(signature=bytes(64)),
        lambda one: one._replace(head=bytes(32)),
        lambda one: one._replace(number=1),
    ],
)
def test_a_forged_resignation_is_refused_by_name(bend: Any) -> None:
    world = world_of("ab")
    head = world["a"].hard_state.head.digest
    good = Resignation("b", 0, head, toy_signature("b", resign(0, head)))
    refused, *_ = world["a"].receive("b", Resigned(0, head, (bend(good),)))
    assert isinstance(refused, Reject) and "resignation of b without a valid signature" in refused.reason
    assert world["a"].hard_state.remaining == ("a", "b")


def test_one_of_another_chain_or_a_later_round_takes_no_vote() -> None:
    world = world_of("ab")
    head = world["a"].hard_state.head.digest
    for number, after in ((0, bytes(32)), (1, head), (5, head)):
        other = Resignation("b", number, after, toy_signature("b", resign(number, after)))
        world["a"].receive("b", Resigned(0, head, (other,)))
    far = Resignation("b", 9, head, toy_signature("b", resign(9, head)))
    world["a"].receive("b", Resigned(0, head, (far,)))
    assert world["a"].hard_state.remaining == ("a", "b")
    assert far not in world["a"].hard_state.resignations, "what a peer may have to keep is bounded"


def test_one_that_arrives_before_the_commit_it_follows_counts_after_it() -> None:
    world = world_of("ab")
    for owner in "ab":
        for peer in "ab":
            world.give(peer, 0, payload(owner, 0))
    leader = world["a"].hard_state.leader(0)
    other = "b" if leader == "a" else "a"
    while world[leader].number == 0:
        world.deliver()
    decided = world.network.pop()
    assert world[other].number == 0
    world.event(leader, lambda machine: machine.resign())
    world.deliver(len(world.network) - 1)
    world.crash(leader)
    world.crash(other)
    world.start(other)  # it is not lost in a crash
    world.network.append(decided)
    world.fetches.clear()
    play(world, other)
    play(world, other)
    assert world[other].number == 2 and world[other].hard_state.roster == (other,)


@PROTOCOLS
@pytest.mark.parametrize(
    "policy",
    [GatherPolicy(min_peers=2, min_fraction=0.0), GatherPolicy(min_peers=1, min_fraction=0.0, quorum="all")],
)
def test_who_is_needed_does_not_resign(policy: GatherPolicy, protocol: type[Chain]) -> None:
    world = world_of("ab", protocol=protocol, policy=policy)
    assert world["b"].resign() == [] and not world["b"].waits_to_resign and world["b"].votes


def test_of_three_that_leave_at_once_min_peers_stay_in_the_roster() -> None:
    world = world_of("abc", policy=GatherPolicy(min_peers=2, min_fraction=0.0))
    for peer in "bc":
        world.event(peer, lambda machine: machine.resign())  # neither has heard of the other one
    world.deliver_all()
    play(world, "a", "b")
    assert world["a"].number == 1 and world["a"].hard_state.roster == ("a", "b", "c")


def test_a_peer_that_resigned_is_dropped_only_if_min_peers_of_those_that_stay_take_part() -> None:
    """Two peers take part, but only one of them, a, stays."""
    first = HardState.first(session=RUN, peer="a", roster="abc")
    head = first.head.digest
    hard_state = first.with_resignations([Resignation("b", 0, head, toy_signature("b", resign(0, head)))])
    commit = Commit(0, head, 0, (payload("a", 0), payload("b", 0)), ("a", "c"))
    error = commit_error(hard_state, commit, ToySigner("a"), min_peers=2, absent_rounds=8)
    why = "although fewer than min_peers=2 of the peers that stay take part"
    assert error == f"commit 0 drops b, which has resigned, {why}"


def test_the_last_one_keeps_its_vote() -> None:
    world = world_of("abc")
    leave(world, "b")
    leave(world, "c")
    assert world["a"].resign() == [] and world["a"].votes
    play(world, "a")
    assert world["a"].hard_state.roster == ("a",)


@PROTOCOLS
def test_a_certificate_proves_itself_with_the_resignations_in_it(protocol: type[Chain]) -> None:
    world = world_of("abcd", protocol=protocol)
    leave(world, "c", "d")
    play(world, "a", "b")
    before, decided = world["a"].hard_state.log[-2:]
    assert decided.commit.roster == ("a", "b") and len(decided.accepts) == 2
    read = from_map(msgpack.unpackb(msgpack.packb(to_map(decided))))
    assert read == decided and certificate_error(before.commit, decided, ToySigner("z")) == ""
    assert "of 4 peers" in certificate_error(before.commit, replace(decided, resignations=()), ToySigner("z"))
    first, *others = decided.resignations
    for bent, reason in (
        (first._replace(signature=bytes(64)), "without a valid signature"),
        (first._replace(peer="z"), "that is not about commit 0"),
        (first._replace(number=3), "that is not about commit 0"),
    ):
        forged = replace(decided, resignations=(bent, *others))
        assert reason in certificate_error(before.commit, forged, ToySigner("z"))


@pytest.mark.parametrize(("members", "protocol"), [("abcde", PaxosChain), ("abcd", HotStuffChain)])
def test_a_peer_adds_the_resignations_that_a_leader_left_out_of_its_certificate(
    members: str, protocol: type[Chain]
) -> None:
    """The commit counts the payload of a peer and drops it. Only its resignation shows why; the votes suffice."""
    *others, leaver = members
    world = world_of(members, "z", protocol=protocol)
    leave(world, leaver)
    before = world.peers["b"].disk
    play(world, leaver, *others)
    decided = replace(world["a"].hard_state.log[-1], resignations=())
    assert leaver in {one.peer for one in decided.commit.participants} and leaver not in decided.commit.roster
    world.crash("b")
    world.peers["b"].disk = before
    world.start("b")
    world["b"].receive("a", decided)
    refused = world["z"].receive("a", decided)
    assert [one.reason for one in refused if isinstance(one, Reject)] == ["commit 0 drops peers that take part in it"]
    (completed,) = world.told("b", -1)
    world["z"].receive("b", completed)
    assert world["z"].number == 1


@PROTOCOLS
def test_a_snapshot_brings_the_resignations_that_also_cover_the_next_round(protocol: type[Chain]) -> None:
    world = world_of("abcd", "z", protocol=protocol)
    leave(world, "d")
    play(world, "a", "b", "c")
    decided = world["a"].hard_state.log[-1]
    roster = tuple(sorted((*decided.commit.roster, "d")))  # as if the commit had been proposed before the resignation
    commit = replace(decided.commit, roster=roster)
    (given,) = decided.resignations
    forged = given._replace(peer="c")
    for resigned, counted in (((given,), {"d"}), ((forged,), set())):
        machine = protocol(
            HardState.joining(session=RUN, peer="z", head=world["a"].hard_state.log[0]),
            signer=ToySigner("z"),
            gather_policy=LONE,
            absent_rounds=8,
        )
        machine.install_snapshot(replace(decided, commit=commit, resignations=resigned))
        assert {one.peer for one in machine.hard_state.resignations} == counted


def test_of_a_liar_that_resigns_and_votes_one_of_the_two_counts() -> None:
    """Its vote is one of three that are needed of four; without its vote, two of the three others are needed."""
    world = world_of("abcd")
    leader = world["a"].hard_state.leader(0)
    machine, liar = world[leader], next(peer for peer in "abcd" if peer != leader)
    for owner in "abcd":
        world.give(leader, 0, payload(owner, 0))
    commit = machine.hard_state.accepted.commit  # type: ignore[union-attr]
    accept = toy_signature(liar, ("accept", 0, commit.parent, 0, commit.digest))
    machine.receive(liar, Accept(0, commit.parent, 0, commit.digest, accept))
    own = Resignation(liar, 0, commit.parent, toy_signature(liar, resign(0, commit.parent)))
    machine.receive(liar, Resigned(0, commit.parent, (own,)))
    assert machine.number == 0, "its own vote is one of three"
    honest = next(peer for peer in "abcd" if peer not in (leader, liar))
    accept = toy_signature(honest, ("accept", 0, commit.parent, 0, commit.digest))
    machine.receive(honest, Accept(0, commit.parent, 0, commit.digest, accept))
    assert machine.number == 1


def test_memory_of_the_version_before_is_read() -> None:
    hard_state = HardState.first(session=RUN, peer="a", roster="ab")
    stored = msgpack.unpackb(hard_state.to_bytes())
    del stored["resignations"]
    assert HardState.from_bytes(msgpack.packb({**stored, "version": 6}), session=RUN, peer="a") == hard_state
    with pytest.raises(MalformedMessage, match="the hard state must be a map with the keys"):
        HardState.from_bytes(msgpack.packb(stored), session=RUN, peer="a")


def test_a_peer_that_resigned_after_another_commit_before_cannot_stop_those_who_know_it() -> None:
    world = world_of("abcd")
    head = world["a"].hard_state.head.digest
    other = Resignation("d", 0, bytes(32), toy_signature("d", resign(0, bytes(32))))
    world["a"].receive("d", Resigned(0, head, (other,)))
    leave(world, "d")
    play(world, "a", "b", "c")
    assert all(world[peer].number == 1 and world[peer].hard_state.roster == ("a", "b", "c") for peer in "abc")


def test_a_peer_that_leaves_and_changes_to_another_chain_resigns_there_as_well() -> None:
    world = world_of("ab")
    machine = world["b"]
    other = Resignation("b", 0, bytes(32), toy_signature("b", resign(0, bytes(32))))
    machine.hard_state = machine.hard_state.with_resignations([other])
    [sent] = resignations(machine.resign())
    assert sent.head == machine.hard_state.head.digest and not machine.votes


def test_resignations_of_strangers_are_bounded_and_memory_with_many_of_them_is_read() -> None:
    world = world_of("ab")
    machine = world["a"]
    head = machine.hard_state.head.digest
    for stranger in (f"stranger{index}" for index in range(MAX_PEERS // 8)):
        many = [
            Resignation(stranger, number, head, toy_signature(stranger, resign(number, head))) for number in range(9)
        ]
        machine.receive(stranger, Resigned(0, head, tuple(many)))
    assert len(machine.hard_state.resignations) == MAX_PEERS
    own = Resignation("b", 0, head, toy_signature("b", resign(0, head)))
    machine.receive("b", Resigned(0, head, (own,)))
    assert machine.hard_state.remaining == ("a",) and len(machine.hard_state.resignations) == MAX_PEERS + 1
    assert HardState.from_bytes(machine.hard_state.to_bytes(), session=RUN, peer="a") == machine.hard_state
