"""The agreement as stories: who says what to whom when all goes well, and when it does not."""

import random
from collections.abc import Callable

import pytest

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.effects import ApplyCommit, CatchUp, Effect, FetchPayloads, Persist, Reject, Send
from outerloop.swarm.consensus.explain import waiting_for
from outerloop.swarm.consensus.messages import Accept, JoinRequest, Promise, Propose, ViewChange, ViewWishes
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.roster_change import next_roster
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.consensus.votes import Accepted, CommitCertificate, ViewWish
from tests.support.swarm.consensus_world import RUN, World, payload
from tests.support.swarm.toy_signatures import ToySigner, accept_of, decided_by, proposal, toy_signature

TRIO = ("a", "b", "c")
ALL_IN = GatherPolicy(min_peers=2, min_fraction=1.0)


def trio(*, gather_policy: GatherPolicy = ALL_IN, outsiders: tuple[str, ...] = (), absent_rounds: int = 3) -> World:
    return World(TRIO, outsiders, gather_policy=gather_policy, absent_rounds=absent_rounds, rng=random.Random(1))


def roles(world: World, view: int = 0) -> list[str]:
    """The leader of a view of the first peer's round, then the others."""
    hard_state = world[world.up[0]].hard_state
    leader = hard_state.leader(view)
    return [leader, *(peer for peer in hard_state.roster if peer != leader)]


def everybody_has_everything(world: World) -> None:
    for owner in world.up:
        number = world[owner].number
        for peer in world.up:
            world.give(peer, number, payload(owner, number))


def play_round(world: World) -> None:
    everybody_has_everything(world)
    world.deliver_all()


def kinds(outputs: list[Effect]) -> list[type]:
    return [type(one.message) if isinstance(one, Send) else type(one) for one in outputs]


def numbers(world: World) -> list[int]:
    return [world[peer].number for peer in world.up]


def here(peer: str, head: bytes, view: int, number: int = 0) -> ViewChange:
    return ViewChange(number, head, view, toy_signature(peer, statements.wish(number, head, view)))


def promise(peer: str, head: bytes, view: int, accepted: Accepted | None = None, number: int = 0) -> Promise:
    said = statements.promise(number, head, view, accepted.vote if accepted else None)
    return Promise(number, head, view, accepted, toy_signature(peer, said))


def ask(peer: str, head: bytes, number: int = 0) -> JoinRequest:
    return JoinRequest(number, head, toy_signature(peer, statements.ask(number, head)))


def time_out(world: World, *peers: str) -> None:
    for peer in peers:
        world.event(peer, lambda machine: machine.timeout(machine.number, machine.view))


def test_all_in_one_proposal_and_everybody_applies_it() -> None:
    world = trio()
    play_round(world)
    commit = world["a"].hard_state.head
    assert numbers(world) == [1, 1, 1] and world.monitor.applied == 3
    assert [one.peer for one in commit.participants] == list(TRIO) and commit.roster == TRIO and commit.view == 0
    play_round(world)
    assert world["b"].hard_state.head.parent == commit.digest


def test_votes_are_saved_before_they_are_sent() -> None:
    world = trio()
    leader, follower, _ = roles(world)
    for peer in TRIO[:2]:
        world.give(leader, 0, payload(peer, 0))
        world.give(follower, 0, payload(peer, 0))
    assert kinds(world[leader].payload_stored(0, payload("c", 0))) == [Persist, Propose, Propose]
    proposed = world[leader].proposed
    assert proposed
    world[follower].payload_stored(0, payload("c", 0))
    outputs = world[follower].receive(leader, Propose(proposed))
    assert kinds(outputs) == [Persist, Accept]
    accept = outputs[1]
    assert isinstance(accept, Send) and accept.to == leader
    assert kinds(world[leader].receive(follower, accept.message)) == [
        ApplyCommit,
        CommitCertificate,
        CommitCertificate,
        Persist,
    ]
    assert kinds(world[follower].timeout(0, 0)) == [ViewChange, ViewChange], "a wish binds nobody"
    other = next(peer for peer in TRIO if peer not in (leader, follower))
    outputs = world[follower].receive(other, here(other, proposed.commit.parent, 1))
    assert kinds(outputs) in ([Persist, Promise], [Persist, ViewWishes, ViewWishes])


@pytest.mark.parametrize("crash_after", [0, 1, 2, 3])
def test_a_commit_that_was_applied_and_not_saved_is_learned_again(crash_after: int) -> None:
    """The leader ends in the middle of deciding, whoever has heard of it; the others' next view comes to the same."""
    world = trio()
    leader, first, second = roles(world)
    for peer in TRIO:
        for owner in TRIO:
            world.give(peer, 0, payload(owner, 0))
    while not any(isinstance(message, Accept) for _, _, message in world.network):
        world.deliver(next(i for i, (_, to, _) in enumerate(world.network) if to == first))
    accept = next(i for i, (_, _, message) in enumerate(world.network) if isinstance(message, Accept))
    world.deliver(accept, crash_after=crash_after)
    assert leader not in world.up and world.peers[leader].disk.number == 0, "its disk knows of no commit"
    world.start(leader)
    for _ in range(3):
        world.deliver_all()
        for peer in TRIO:
            number, view = world[peer].number, world[peer].view
            if number == 0:
                world.event(peer, lambda machine, view=view: machine.timeout(0, view))
    world.deliver_all()
    assert numbers(world) == [1, 1, 1] and len({world[peer].hard_state.head.digest for peer in TRIO}) == 1
    assert second in world.up


def test_a_single_peer_commits_what_it_holds() -> None:
    world = World(["a"], gather_policy=GatherPolicy(min_peers=1, min_fraction=1))
    world.launch("a")
    world.launch("a")
    assert world["a"].number == 2 and not world.network


def test_a_late_peer_misses_the_round_and_takes_part_in_the_next() -> None:
    world = trio(gather_policy=GatherPolicy(min_peers=2, min_fraction=0.6))
    leader, on_time, late = roles(world)
    for peer in (leader, on_time):
        for owner in (leader, on_time):
            world.give(peer, 0, payload(owner, 0))
    world.deliver_all()
    assert numbers(world) == [0, 0, 0]
    world.event(leader, lambda machine: machine.grace(0))
    world.deliver_all()
    assert numbers(world) == [1, 1, 1]
    assert [one.peer for one in world[late].hard_state.head.participants] == sorted({leader, on_time})
    play_round(world)
    assert len(world[late].hard_state.head.participants) == 3


def test_grace_is_not_enough_below_the_fraction_and_nothing_is_below_min_peers() -> None:
    world = trio(gather_policy=GatherPolicy(min_peers=2, min_fraction=0.9))
    leader, other, third = roles(world)
    world.give(leader, 0, payload(leader, 0))
    for act in (PaxosChain.grace, PaxosChain.deadline):
        world.event(leader, lambda machine, act=act: act(machine, 0))
    assert waiting_for(world[leader]) == f"view 0: 1 of 2 payloads have arrived, none from {other}, {third}"
    assert numbers(world) == [0, 0, 0] and not world.network
    world.give(leader, 0, payload(other, 0))
    assert len(world.network) == 2


def test_an_old_timer_changes_nothing() -> None:
    world = trio()
    play_round(world)
    machine = world["a"]
    for outputs in (machine.grace(0), machine.deadline(0), machine.timeout(0, 0), machine.timeout(1, 3)):
        assert outputs == []
    assert machine.soft_state.grace is machine.soft_state.deadline is False and machine.view == 0


def test_an_accept_waits_for_its_payloads() -> None:
    world = trio()
    leader, follower, third = roles(world)
    for peer in TRIO:
        world.give(leader, 0, payload(peer, 0))
    world.give(follower, 0, payload(leader, 0))
    (proposal,) = [message for _, to, message in world.network if to == follower]
    outputs = world[follower].receive(leader, proposal)
    missing = tuple(payload(peer, 0) for peer in sorted({follower, third}))
    assert outputs == [FetchPayloads(0, missing, leader)]
    absent = f"{missing[0].peer}, {missing[1].peer}"
    assert waiting_for(world[follower]).endswith(f"payloads of {absent} have not arrived yet")
    assert world[follower].receive(leader, proposal) == []
    assert world[follower].payload_stored(0, missing[0]) == []
    assert kinds(world[follower].payload_stored(0, missing[1])) == [Persist, Accept]
    assert kinds(world[follower].receive(leader, proposal)) == [Accept]  # it was lost: said again


def test_an_accept_that_came_too_late_is_not_given() -> None:
    world = trio()
    leader, follower, third = roles(world)
    for peer in TRIO:
        world.give(leader, 0, payload(peer, 0))
    (proposal,) = [message for _, to, message in world.network if to == follower]
    world[follower].receive(leader, proposal)
    world[follower].timeout(0, 0)
    world[follower].receive(third, here(third, proposal.head, 1))
    assert world[follower].view == 1
    for peer in TRIO:
        assert Accept not in kinds(world[follower].payload_stored(0, payload(peer, 0)))
    (told,) = world[follower].receive(leader, proposal)
    assert isinstance(told, Send) and isinstance(told.message, ViewWishes) and told.to == leader
    world[leader].receive(follower, told.message)
    assert world[leader].view == 1, "who is behind is shown why, and follows"


def test_a_dead_leader_is_followed_by_the_next_view() -> None:
    world = trio(gather_policy=GatherPolicy(min_peers=2, min_fraction=0.6))
    dead, *others = roles(world)
    world.crash(dead)
    everybody_has_everything(world)
    world.deliver_all()
    for peer in others:
        world.event(peer, lambda machine: machine.grace(0))
    while numbers(world) != [1, 1]:
        time_out(world, *others)
        world.deliver_all()
    assert {one.peer for one in world[others[0]].hard_state.head.participants} == set(others)


def test_a_proposal_that_a_majority_may_have_accepted_is_proposed_again_unchanged() -> None:
    world = trio()
    dead, follower, third = roles(world)
    everybody_has_everything(world)
    world.network = [(sender, to, message) for sender, to, message in world.network if to == follower]
    world.deliver()  # leader and one follower have accepted: chosen, and nobody knows
    chosen = world.monitor.chosen[0]
    world.crash(dead)
    world.network.clear()
    while numbers(world) != [1, 1]:
        time_out(world, follower, third)
        world.deliver_all()
    assert world[third].hard_state.head == chosen and chosen.view == 0 and chosen.participants


def test_a_leader_that_crashed_before_it_spoke_says_the_same_or_nothing() -> None:
    world = trio()
    leader, *_ = roles(world)
    for peer in TRIO[:2]:
        world.give(leader, 0, payload(peer, 0))
    world.give(leader, 0, payload("c", 0), crash_after=1)  # saved, not sent
    assert not world.network and leader not in world.up
    world.start(leader)
    proposed = world[leader].proposed
    assert proposed and proposed.view == 0
    assert waiting_for(world[leader]).startswith("view 0: 1 of 2 accepts have arrived, none from ")
    everybody_has_everything(world)
    while set(numbers(world)) != {1}:
        time_out(world, *TRIO)
        world.deliver_all()


def test_one_timeout_brings_nobody_to_the_next_view_and_two_of_three_bring_all() -> None:
    world = trio()
    for _ in range(3):
        time_out(world, "a")
        world.deliver_all()
    assert [world[peer].view for peer in TRIO] == [0, 0, 0] and world["b"].overdue and not world["a"].overdue
    time_out(world, "b")
    world.deliver_all()
    leader = world["a"].hard_state.leader(1)
    assert [world[peer].view for peer in TRIO] == [1, 1, 1]
    assert len(world[leader].soft_state.promises_of(1)) == 2
    assert waiting_for(world[leader]).startswith("view 1: 0 of 3 payloads have arrived")


def test_without_a_majority_the_swarm_waits_and_says_so() -> None:
    world = trio()
    for peer in roles(world)[1:]:
        world.crash(peer)
    (alone,) = world.up
    for peer in TRIO:
        world.give(alone, 0, payload(peer, 0))
    down = ", ".join(sorted(set(TRIO) - {alone}))
    assert waiting_for(world[alone]) == f"view 0: 1 of 2 accepts have arrived, none from {down}"
    for _ in range(10):
        time_out(world, alone)
        world.deliver_all()
        assert world[alone].number == world[alone].view == 0


def test_a_peer_that_missed_a_round_gets_the_commits() -> None:
    world = trio()
    leader, _, late = roles(world)
    everybody_has_everything(world)
    while world.network:
        world.network = [one for one in world.network if one[1] != late]
        world.deliver()
    assert world[leader].number == 1 and world[late].number == 0
    time_out(world, late)
    first = world[leader].hard_state.log[-2].commit
    outputs = world[leader].receive(late, promise(late, first.digest, 1))
    assert outputs == [Send(late, here(leader, world[leader].hard_state.head.digest, 0, number=1))]
    assert isinstance(outputs[0], Send)
    assert world[late].receive(leader, outputs[0].message) == [CatchUp(1, leader)]
    world.fetch(late, leader)
    assert world[late].hard_state.head == world[leader].hard_state.head


def test_a_log_that_does_not_reach_back_means_the_state_is_downloaded() -> None:
    world = trio(gather_policy=GatherPolicy(min_peers=2, min_fraction=0.6), absent_rounds=2)
    world.crash("c")
    for _ in range(ROUNDS_KEPT + 1):
        before = world["a"].number
        while world["a"].number == before or world["b"].number == before:
            play_round(world)
            for peer in ("a", "b"):
                world.event(peer, lambda machine: machine.grace(machine.number))
            world.deliver_all()
            if world["a"].number == before:
                time_out(world, "a", "b")
    assert len(world["a"].hard_state.log) == ROUNDS_KEPT and world["a"].commits_since(-1) is None
    first_kept = world["a"].hard_state.log[0].commit.number
    assert len(world["a"].commits_since(first_kept - 1) or ()) == ROUNDS_KEPT
    assert world["a"].commits_since(world["a"].number) == ()
    world.start("c")
    assert kinds(world["c"].install_snapshot(world["a"].hard_state.log[-1])) == [Persist]
    assert world["c"].number == world["a"].number and world["c"].install_snapshot(world["a"].hard_state.log[-1]) == []


def test_absent_peers_leave_the_roster_and_peers_that_ask_enter_it() -> None:
    world = trio(gather_policy=GatherPolicy(min_peers=2, min_fraction=0.6), outsiders=("d",), absent_rounds=2)
    world.crash("c")
    rosters = []
    while len(rosters) < 4:
        number = world["a"].number
        everybody_has_everything(world)
        world.event("d", lambda machine: machine.request_join())
        world.deliver_all()
        for peer in ("a", "b"):
            world.event(peer, lambda machine, number=number: machine.grace(number))
        world.deliver_all()
        if world["a"].number > number:
            rosters.append("".join(world["a"].hard_state.roster))
        else:
            time_out(world, "a", "b")
    assert rosters[0] == "abc" or rosters[0] == "abcd"
    assert rosters[-1] == "abd" and world["d"].votes and world["d"].number == world["a"].number


def test_where_one_log_is_too_short_to_tell_who_is_absent_the_dead_leave_all_the_same() -> None:
    """a and b are left, and b has downloaded the state just now: it votes for nobody's leaving, and proposes none."""
    world = trio(gather_policy=GatherPolicy(min_peers=2, min_fraction=0.6), absent_rounds=3)
    for _ in range(2):
        play_round(world)
    world.crash("c")
    for _ in range(60):
        before = numbers(world)
        if before == [3, 3] and len(world["b"].hard_state.log) > 1:
            short = HardState(RUN, "b", world["b"].hard_state.log[-1:])
            world.crash("b")
            world.peers["b"].disk = short
            world.start("b")
        everybody_has_everything(world)
        for peer in world.up:
            world.event(peer, lambda machine: machine.grace(machine.number))
        world.deliver_all()
        if numbers(world) == before:
            time_out(world, *world.up)
            world.deliver_all()
    assert world["a"].number > 10 and world["a"].hard_state.roster == ("a", "b")


def commits(*presence: str, roster: str = "abc") -> list[Commit]:
    """A history in which these were present, one after the other."""
    history = [Commit(-1, bytes(32), 0, (), tuple(roster))]
    for number, present in enumerate(presence):
        participants = tuple(Participant(peer, bytes(32), 1) for peer in present)
        history.append(Commit(number, history[-1].digest, 0, participants, tuple(roster)))
    return history


@pytest.mark.parametrize(
    ("history", "present", "learners", "absent_rounds", "roster"),
    [
        (commits(), "abc", "", 1, "abc"),
        (commits(), "ab", "", 1, "abc"),  # one of three may lie, and a single leader proposes this
        (commits("ab"), "ab", "", 1, "ab"),
        (commits(), "ab", "", 2, "abc"),  # nothing is known of the round before the first
        (commits("ab"), "ab", "", 2, "ab"),
        (commits("abc"), "ab", "", 2, "abc"),
        (commits("ab"), "abc", "", 2, "abc"),
        (commits("ab", "abc"), "ab", "", 3, "abc"),
        (commits(), "abc", "d", 2, "abcd"),
        (commits(), "abc", "defgh", 2, "abcde"),  # three who are alive stay more than half
        (commits(roster="a"), "a", "bc", 2, "ab"),  # one may always enter
        (commits(roster="ab"), "ab", "cd", 2, "abc"),
        (commits(roster="abcde"), "abc", "f", 2, "abcde"),  # of six, three would be no majority
        (commits(roster="abcde"), "abcd", "f", 2, "abcdef"),
        (commits(roster="abcde"), "a", "f", 2, "abcde"),
        (commits("abc", roster="abcde"), "abc", "fgh", 2, "abcde"),  # two of five may lie, and two leaders propose it
        (commits("abc", "abc", "abc", roster="abcde"), "abc", "fgh", 2, "abcfg"),  # once d and e are out
        (commits("ab", roster="abc"), "ab", "d", 2, "abd"),
    ],
)
def test_the_next_roster(history: list[Commit], present: str, learners: str, absent_rounds: int, roster: str) -> None:
    participants = [Participant(peer, bytes(32), 1) for peer in present + learners]
    assert "".join(next_roster(history, participants, session="s", view=0, absent_rounds=absent_rounds)) == roster


@pytest.mark.parametrize(("run", "roster"), [("r", "abcd"), ("s", "ab"), ("t", "ab")])
def test_no_leader_drops_by_itself_whom_it_does_not_count(run: str, roster: str) -> None:
    """Round 0 and 1 of four peers, c and d in neither: in run "r" the same one leads both, in the others two do."""
    leaders = {HardState.first(session=run, peer="a", roster="abcd", number=number).leader(0) for number in (0, 1)}
    assert len(leaders) == (1 if run == "r" else 2)
    participants = [Participant(peer, bytes(32), 1) for peer in "ab"]
    history = commits("ab", roster="abcd")
    assert "".join(next_roster(history, participants, session=run, view=0, absent_rounds=2)) == roster


def test_the_short_log_of_one_that_votes_is_made_up_for_by_another_one() -> None:
    """a leads and drops c, which is gone; b has just downloaded the state and cannot tell who was absent."""
    led = [HardState.first(session=RUN, peer="a", roster=TRIO, number=number).leader(0) for number in range(99)]
    first = next(number for number in range(99) if led[number] != "a" == led[number + 2])
    hard_state = HardState.first(session=RUN, peer="a", roster=TRIO, number=first)
    for number in (first, first + 1):
        both = tuple(payload(peer, number) for peer in "ab")
        hard_state = hard_state.learned(decided_by("ab", Commit(number, hard_state.head.digest, 0, both, TRIO)))
    world = trio(gather_policy=GatherPolicy(min_peers=2, min_fraction=0.6))
    world.monitor.chosen |= {one.commit.number: one.commit for one in hard_state.log}
    for peer, log in (("a", hard_state.log), ("b", hard_state.log[-1:])):
        world.crash(peer)
        world.peers[peer].disk = HardState(RUN, peer, log)
        world.start(peer)
    world.crash("c")
    closed(world, "a", "b")
    assert world["b"].number == hard_state.number, "a proposes to drop c"
    for _ in range(4):
        time_out(world, "a", "b")
        world.deliver_all()
    assert world["b"].number > hard_state.number and world["b"].hard_state.roster == ("a", "b")
    assert world["b"].hard_state.log[0].commit == hard_state.log[1].commit


def closed(world: World, *peers: str) -> None:
    """Payloads of these are everywhere, and the grace is over."""
    number = world[peers[0]].number
    for owner in peers:
        for peer in world.up:
            world.give(peer, number, payload(owner, number))
    for peer in world.up:
        world.event(peer, lambda machine: machine.grace(number))
    world.deliver_all()


def test_a_learner_is_counted_first_and_votes_afterwards() -> None:
    world = trio(outsiders=("d",))
    world.event("d", lambda machine: machine.request_join())
    world.deliver_all()
    for owner in TRIO:
        for peer in world.up:
            world.give(peer, 0, payload(owner, 0))
    world.deliver_all()
    assert numbers(world) == [0] * 4, "who asked is waited for in the grace"
    closed(world, *TRIO)
    assert numbers(world) == [1] * 4 and world["a"].hard_state.roster == TRIO, "and not beyond it"
    world.event("d", lambda machine: machine.request_join())
    world.deliver_all()
    everybody_has_everything(world)
    world.deliver_all()
    head = world["a"].hard_state.head
    assert [one.peer for one in head.participants] == [*"abcd"] and head.roster == (*"abcd",)
    assert world["d"].votes and all(one.accepts for one in world["a"].hard_state.log[1:])
    assert all("d" not in dict(one.accepts) for one in world["a"].hard_state.log), "it has not voted for its own entry"


def test_a_learner_has_no_say() -> None:
    world = trio(outsiders=("d",))
    leader, *_ = roles(world)
    head = world["a"].hard_state.head.digest
    world[leader].receive("d", ask("d", head))
    for message in (here("d", head, 1), promise("d", head, 1)):
        refused, *_ = world[leader].receive("d", message)
        assert isinstance(refused, Reject) and "not another peer in the roster" in refused.reason
    assert world["d"].timeout(0, 0) == [] and world["d"].payload_stored(0, payload("d", 0)) == []


@pytest.mark.parametrize(
    ("held", "grace", "deadline", "closes"),
    [
        (7, False, False, True),
        (6, False, False, False),
        (5, True, False, True),
        (4, True, False, False),  # 4.2 of 7 are needed
        (3, True, True, True),
        (2, True, True, False),
        (0, True, True, False),
    ],
)
def test_when_a_gather_closes(held: int, grace: bool, deadline: bool, closes: bool) -> None:
    assert (
        GatherPolicy(min_peers=3, min_fraction=0.6).closes(held, 7, awaited=7, grace=grace, deadline=deadline) is closes
    )


def test_a_newcomer_brings_the_head_and_who_lost_its_memory_is_a_newcomer() -> None:
    world = trio(outsiders=("d",))
    play_round(world)
    head = world["a"].hard_state.log[-1]
    with pytest.raises(ValueError, match="has no saved state"):
        HardState.joining(session=RUN, peer="a", head=head)
    stale = ask("d", world["d"].hard_state.head.digest)
    assert kinds(world["a"].receive("d", stale)) == [ViewChange]
    assert kinds(world["a"].receive("d", ask("d", bytes(32), 1))) == [Reject]
    for forged in (
        ask("e", head.commit.digest, 1),
        JoinRequest(1, head.commit.digest, ask("d", head.commit.digest).signature),
    ):
        assert kinds(world["a"].receive("d", forged)) == [Reject]
    assert world["a"].receive("d", ask("d", head.commit.digest, 1)) == [] and world["a"].soft_state.asked == {"d"}
    assert waiting_for(world["d"]) == "view 0: decided by 3 peers, not including this one"
    assert world["d"].timeout(0, 0) == [] and world["a"].request_join() == []


def fork(commit: Commit) -> Commit:
    return Commit(commit.number, bytes(32), commit.view, commit.participants, commit.roster)


def tiny(commit: Commit) -> Commit:
    return Commit(commit.number, commit.parent, commit.view, commit.participants[:1], commit.roster)


def strange(commit: Commit) -> Commit:
    return Commit(commit.number, commit.parent, commit.view, commit.participants, (*commit.roster, "z"))


def dropping(commit: Commit) -> Commit:
    return Commit(commit.number, commit.parent, commit.view, commit.participants, commit.roster[:2])


def another(commit: Commit) -> Commit:
    return Commit(commit.number, commit.parent, commit.view, commit.participants[:2], commit.roster)


BENT: list[tuple[Callable[[Commit], Commit], str]] = [
    (fork, "their histories differ"),
    (tiny, "1 participants, fewer than min_peers=2"),
    (strange, "admits z, whose payload it does not include"),
    (dropping, "drops peers that take part in it"),
]


@pytest.mark.parametrize(("bend", "reason"), BENT)
def test_a_bent_commit_is_refused_by_name_proposed_or_decided(bend: Callable[[Commit], Commit], reason: str) -> None:
    world = trio()
    leader, follower, _ = roles(world)
    everybody_has_everything(world)
    proposed = world[leader].proposed
    assert proposed
    bent = bend(proposed.commit)
    for message in (Propose(proposal(bent, roster=TRIO)), decided_by(TRIO, bent)):
        refused, *_ = world[follower].receive(leader, message)
        assert isinstance(refused, Reject) and refused.sender == leader and reason in refused.reason
    assert world[follower].number == 0 and world[follower].hard_state.accepted is None


def test_too_large_a_payload_is_refused_proposed_decided_and_promised() -> None:
    world = trio()
    leader, follower, _ = roles(world)
    everybody_has_everything(world)
    proposed = world[leader].proposed
    assert proposed
    small = PaxosChain(
        world[follower].hard_state, signer=ToySigner(follower), gather_policy=ALL_IN, absent_rounds=3, max_bytes=9
    )
    view = next(v for v in range(1, 4) if small.hard_state.leader(v) == follower)
    promised = promise(leader, small.hard_state.head.digest, view, proposed)
    for message in (Propose(proposed), decided_by(TRIO, proposed.commit), promised):
        refused, *_ = small.receive(leader, message)
        assert isinstance(refused, Reject) and "10 bytes from a, 10 bytes from b" in refused.reason
    assert (small.number, small.view, small.hard_state.accepted) == (0, 0, None)


def test_messages_of_another_chain_are_refused_by_name() -> None:
    world = trio(outsiders=("d",))
    leader, follower, third = roles(world)
    everybody_has_everything(world)
    proposed = world[leader].proposed
    assert proposed
    machine, head = world[follower], world[follower].hard_state.head.digest
    right = world[leader].hard_state.leader(1)
    wrong = third if right == follower else follower
    scenes = [
        (follower, third, Propose(proposed), "does not lead"),
        (follower, "d", Propose(proposed), "not another peer in the roster"),
        (follower, follower, here(follower, head, 1), "not another peer in the roster"),
        (follower, third, here(third, bytes(32), 1), "follows another one"),
        (follower, third, here(leader, head, 1), "without a valid signature"),
        (follower, third, ViewWishes(0, head, (ViewWish(leader, 1, bytes(64)),)), "without a valid signature"),
        (
            follower,
            leader,
            decided_by((leader, "x", "y"), proposed.commit),
            "accepts from 1 of 3 peers, not a majority",
        ),
        (follower, leader, forged(proposed.commit, leader, third), "accepts from 1 of 3 peers, not a majority"),
        (follower, leader, of_two_views(proposed.commit, leader, third), "accepts from 1 of 3 peers, not a majority"),
        (leader, third, Accept(0, head, 0, proposed.commit.digest, bytes(64)), "without a valid signature"),
        (wrong, leader, promise(leader, head, 1), "does not lead"),
        (right, wrong, promise(leader, head, 1), "without a valid signature"),
    ]
    for peer, sender, message, reason in scenes:
        (refused,) = world[peer].receive(sender, message)  # type: ignore[arg-type]
        assert isinstance(refused, Reject) and reason in refused.reason, message
    machine.receive(leader, Propose(proposed))
    (refused,) = machine.receive(leader, Propose(proposal(another(proposed.commit), roster=TRIO)))
    assert isinstance(refused, Reject) and "two commits in view 0" in refused.reason


def forged(commit: Commit, own: str, other: str) -> CommitCertificate:
    """Only the own accept was signed by whom it names."""
    signature = accept_of(own, commit)
    return CommitCertificate(commit, 0, tuple(sorted([(own, signature), (other, signature)])))


def of_two_views(commit: Commit, one: str, other: str) -> CommitCertificate:
    accepts = (one, accept_of(one, commit, 0)), (other, accept_of(other, commit, 1))
    return CommitCertificate(commit, 0, tuple(sorted(accepts)))


def test_repeated_and_late_messages_change_nothing() -> None:
    world = trio()
    everybody_has_everything(world)
    every = []
    while world.network:
        every.append(world.network[0])
        world.deliver()
    before = {peer: world[peer].hard_state for peer in TRIO}
    for sender, to, message in every * 2:
        outputs = world[to].receive(sender, message)
        assert all(isinstance(one, Send) and isinstance(one.message, ViewChange) for one in outputs)
    assert {peer: world[peer].hard_state for peer in TRIO} == before


def test_settings_that_cannot_be_are_refused() -> None:
    for settings in ({"min_peers": 0, "min_fraction": 0.5}, {"min_peers": 1, "min_fraction": 1.1}):
        with pytest.raises(ValueError, match="min_peers must be 1 or more"):
            GatherPolicy(**settings)  # type: ignore[arg-type]
    hard_state = HardState.first(session=RUN, peer="a", roster=TRIO)
    for absent_rounds in (0, ROUNDS_KEPT + 1):
        with pytest.raises(ValueError, match="absent_rounds must be 1 to 8"):
            PaxosChain(hard_state, signer=ToySigner("a"), gather_policy=ALL_IN, absent_rounds=absent_rounds)
