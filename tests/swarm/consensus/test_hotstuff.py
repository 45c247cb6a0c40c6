"""HotStuff-2: what peers vote for, lock on, save and report, one situation at a time."""

import random
from dataclasses import replace

import pytest

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit, genesis, leader
from outerloop.swarm.consensus.effects import CatchUp, Effect, Persist, Reject, Send
from outerloop.swarm.consensus.explain import waiting_for
from outerloop.swarm.consensus.hotstuff.chain import HotStuffChain
from outerloop.swarm.consensus.hotstuff.messages import COMMIT, PREPARE, NewView, Prepared, ProposalMessage, Vote
from outerloop.swarm.consensus.hotstuff.votes import UNJUSTIFIED, Lock, PrepareCertificate, Proposal
from outerloop.swarm.consensus.messages import Message, ViewChange, ViewWishes
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.quorum import TWO_THIRDS
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.validity import certificate_error
from outerloop.swarm.consensus.votes import CommitCertificate, ViewWish
from tests.support.swarm.consensus_world import RUN, payload
from tests.support.swarm.hotstuff_liar import HotStuffLiars
from tests.support.swarm.hotstuff_world import HotStuffWorld
from tests.support.swarm.toy_signatures import ToySigner, accept_of, decided_by, toy_signature

FOUR = ("k0", "k1", "k2", "k3")
HEAD = genesis(RUN, FOUR)
LEADERS = [leader(RUN, HEAD, view) for view in range(8)]
EARLY = GatherPolicy(min_peers=2, min_fraction=0.0)


def commit(view: int = 0, counted: int = 4) -> Commit:
    """The commit of the first round that counts so many payloads, valid if first proposed in `view`."""
    machine = replica(FOUR[0])
    history = HotStuffWorld(FOUR, liars="", gather_policy=EARLY, absent_rounds=8)
    found = HotStuffLiars(history, random.Random(0)).commit(machine.hard_state, view)
    return replace(found, participants=tuple(payload(peer, 0) for peer in FOUR[:counted]), roster=FOUR)


def replica(peer: str, hard_state: HardState | None = None) -> HotStuffChain:
    """A peer of four that holds all payloads."""
    hard_state = hard_state or HardState.first(session=RUN, peer=peer, roster=FOUR)
    machine = HotStuffChain(hard_state, signer=ToySigner(peer), gather_policy=EARLY, absent_rounds=8)
    for owner in FOUR:
        machine.payload_stored(0, payload(owner, 0))
    return machine


def follower(view: int = 0) -> HotStuffChain:
    """A peer that leads none of the views up to this one, and is in this view."""
    return in_view(replica(next(peer for peer in FOUR if peer not in LEADERS[: min(view, 2) + 1])), view)


def in_view(machine: HotStuffChain, view: int) -> HotStuffChain:
    for peer in FOUR:
        if view and peer != machine.hard_state.peer:
            signature = toy_signature(peer, statements.wish(0, HEAD.digest, view))
            machine.receive(peer, ViewChange(0, HEAD.digest, view, signature))
    assert machine.view == view
    return machine


def certificate(of: Commit, view: int, *, justified: int = UNJUSTIFIED, by: tuple[str, ...] = FOUR[:3]):
    statement = statements.prepare(0, HEAD.digest, view, of.digest, justified)
    return PrepareCertificate(of.digest, view, justified, tuple((peer, toy_signature(peer, statement)) for peer in by))


def proposal(of: Commit, view: int = 0, justification: PrepareCertificate | None = None) -> ProposalMessage:
    unsigned = Proposal(of, view, justification, b"")
    return ProposalMessage(replace(unsigned, signature=toy_signature(LEADERS[view], unsigned.statement)), ())


def locked(view: int, of: Commit, at: int = 0) -> HotStuffChain:
    """A peer in `view` that locked on a commit in view `at`."""
    machine = follower(max(view, at))
    hard_state = replace(machine.hard_state, promised=view, lock=Lock(of, certificate(of, at)))
    return replica(machine.hard_state.peer, hard_state)


def votes(effects: list[Effect], phase: str) -> list[Vote]:
    sent = [effect.message for effect in effects if isinstance(effect, Send)]
    return [one for one in sent if isinstance(one, Vote) and one.phase == phase]


def reasons(effects: list[Effect]) -> str:
    return " ".join(effect.reason for effect in effects if isinstance(effect, Reject))


@pytest.mark.parametrize(("peers", "needed"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (10, 7)])
def test_a_quorum_is_more_than_two_thirds_and_is_there_without_a_third_of_liars(peers: int, needed: int) -> None:
    faulty = (peers - 1) // 3
    assert TWO_THIRDS.of(range(peers)) == needed
    assert 2 * needed - peers > faulty and needed <= peers - faulty


@pytest.mark.parametrize(("present", "size"), [(1, 1), (2, 2), (3, 4), (4, 5), (5, 7)])
def test_the_largest_roster_in_which_those_present_decide(present: int, size: int) -> None:
    assert TWO_THIRDS.largest_roster(present) == size
    assert TWO_THIRDS.of(range(size)) <= present < TWO_THIRDS.of(range(size + 1))


def test_a_vote_is_saved_before_it_is_sent() -> None:
    effects = follower().receive(LEADERS[0], proposal(commit()))
    saved, sent = effects
    assert isinstance(saved, Persist) and isinstance(sent, Send) and sent.to == LEADERS[0]
    assert saved.hard_state.accepted == proposal(commit()).proposal
    assert [vote.digest for vote in votes(effects, PREPARE)] == [commit().digest]


def test_a_peer_that_has_voted_says_so() -> None:
    machine = follower()
    assert waiting_for(machine) == f"view 0: {LEADERS[0]} has not proposed a commit yet"
    machine.receive(LEADERS[0], proposal(commit()))
    needs = f"{LEADERS[0]} needs {machine.quorum.name} of 4 peers"
    assert waiting_for(machine) == f"view 0: this peer has accepted the proposal; {needs}"


def test_a_lock_is_saved_before_the_vote_to_commit() -> None:
    machine = follower()
    machine.receive(LEADERS[0], proposal(commit()))
    effects = machine.receive(LEADERS[0], Prepared(0, HEAD.digest, certificate(commit(), 0)))
    saved, sent = effects
    assert isinstance(saved, Persist) and saved.hard_state.lock == Lock(commit(), certificate(commit(), 0))
    assert isinstance(sent, Send) and votes(effects, COMMIT)[0].digest == commit().digest


def test_a_certificate_that_comes_before_its_proposal_counts_once_that_is_there() -> None:
    machine = follower()
    assert not votes(machine.receive(LEADERS[0], Prepared(0, HEAD.digest, certificate(commit(), 0))), COMMIT)
    assert votes(machine.receive(LEADERS[0], proposal(commit())), COMMIT)


def test_only_the_first_proposal_of_a_view_gets_a_vote_and_a_crash_does_not_change_that() -> None:
    machine = follower()
    machine.receive(LEADERS[0], proposal(commit(counted=4)))
    effects = machine.receive(LEADERS[0], proposal(commit(counted=3)))
    assert not votes(effects, PREPARE) and "two proposals" in reasons(effects)
    saved = HardState.from_bytes(machine.hard_state.to_bytes(), session=RUN, peer=machine.hard_state.peer)
    assert saved == machine.hard_state
    effects = replica(saved.peer, saved).receive(LEADERS[0], proposal(commit(counted=3)))
    assert not votes(effects, PREPARE) and "two proposals" in reasons(effects)


@pytest.mark.parametrize("by", [FOUR[:2], (), ("k0", "k1", "x9")])
def test_a_certificate_needs_the_votes_of_a_quorum_of_the_roster(by: tuple[str, ...]) -> None:
    machine = follower()
    machine.receive(LEADERS[0], proposal(commit()))
    effects = machine.receive(LEADERS[0], Prepared(0, HEAD.digest, certificate(commit(), 0, by=by)))
    assert not votes(effects, COMMIT) and "but needs 3" in reasons(effects)


def test_a_peer_that_is_locked_votes_for_no_proposal_without_justification() -> None:
    effects = locked(1, commit()).receive(LEADERS[1], proposal(commit(1), 1))
    assert not votes(effects, PREPARE) and "locked" in reasons(effects)


def test_a_peer_that_is_not_locked_votes_for_a_proposal_without_justification() -> None:
    assert votes(follower(1).receive(LEADERS[1], proposal(commit(1), 1)), PREPARE)


@pytest.mark.parametrize(("at", "justified", "votes_for_it"), [(0, 1, True), (1, 1, True), (1, 0, False)])
def test_a_peer_that_is_locked_votes_if_the_justification_is_as_high(
    at: int, justified: int, votes_for_it: bool
) -> None:
    machine, again = locked(2, commit(), at), proposal(commit(), 2, certificate(commit(), justified))
    effects = machine.receive(LEADERS[2], again)
    assert bool(votes(effects, PREPARE)) == votes_for_it
    assert machine.lock is not None and machine.lock.view == max(at, justified)


def test_a_peer_that_may_not_vote_itself_locks_on_what_a_quorum_has_prepared() -> None:
    machine, later = locked(2, commit(), 1), certificate(commit(), 2, justified=0)
    machine.receive(LEADERS[2], proposal(commit(), 2, certificate(commit(), 0)))
    assert votes(machine.receive(LEADERS[2], Prepared(0, HEAD.digest, later)), COMMIT)
    assert machine.lock == Lock(commit(), later)


def test_a_peer_reports_its_lock_to_the_leader_of_a_new_view() -> None:
    machine = locked(0, commit())
    reports = []
    for peer in FOUR:
        if peer != machine.hard_state.peer:
            signature = toy_signature(peer, statements.wish(0, HEAD.digest, 1))
            effects = machine.receive(peer, ViewChange(0, HEAD.digest, 1, signature))
            reports += [one for one in effects if isinstance(one, Send) and isinstance(one.message, NewView)]
    assert [(one.to, one.message) for one in reports] == [(LEADERS[1], NewView(0, HEAD.digest, 1, machine.lock))]


def proposed(effects: list[Effect]) -> set[Proposal]:
    sent: list[Message] = [effect.message for effect in effects if isinstance(effect, Send)]
    return {message.proposal for message in sent if isinstance(message, ProposalMessage)}


def leading(view: int) -> HotStuffChain:
    machine = in_view(replica(LEADERS[view]), view)
    machine.grace(0)
    return machine


def test_a_leader_waits_for_reports_and_then_proposes_the_commit_of_the_highest_lock() -> None:
    machine, others = leading(2), [peer for peer in FOUR if peer != LEADERS[2]]
    assert machine.collects_reports
    report = NewView(0, HEAD.digest, 2, Lock(commit(), certificate(commit(), 0)))
    assert not proposed(machine.receive(others[0], report))
    assert not proposed(machine.receive(others[1], NewView(0, HEAD.digest, 2, None)))
    assert machine.reports_over(0, 1) == []
    (made,) = proposed(machine.reports_over(0, 2))
    assert made.commit == commit() and made.justification == certificate(commit(), 0)


def test_a_leader_that_knows_the_locks_of_all_does_not_wait() -> None:
    machine = leading(2)
    for peer in FOUR:
        if peer != LEADERS[2]:
            effects = machine.receive(peer, NewView(0, HEAD.digest, 2, None))
    (made,) = proposed(effects)
    assert made.justification is None and made.commit.view == 2


def test_a_leader_that_has_a_certificate_of_the_view_before_does_not_wait() -> None:
    machine = leading(2)
    other = next(peer for peer in FOUR if peer != LEADERS[2])
    lock = Lock(commit(), certificate(commit(), 1))
    (made,) = proposed(machine.receive(other, NewView(0, HEAD.digest, 2, lock)))
    assert made.justified == 1


def test_a_vote_for_another_justification_than_the_proposed_one_does_not_count() -> None:
    """A certificate needs 3 of 4: the leader's own vote, and two for the view that justifies its proposal, view 1."""
    machine, (other, liar, third) = leading(2), [peer for peer in FOUR if peer != LEADERS[2]]
    lock = Lock(commit(), certificate(commit(), 1))
    machine.receive(other, NewView(0, HEAD.digest, 2, lock))

    def sent_after_vote(peer: str, justified: int) -> list[Effect]:
        signature = toy_signature(peer, statements.prepare(0, HEAD.digest, 2, commit().digest, justified))
        effects = machine.receive(peer, Vote(0, HEAD.digest, 2, PREPARE, commit().digest, justified, signature))
        return [one for one in effects if isinstance(one, Send) and isinstance(one.message, Prepared)]

    assert not sent_after_vote(other, 1) and not sent_after_vote(liar, UNJUSTIFIED)
    assert sent_after_vote(third, 1)


def test_a_leader_proposes_once_in_a_view_also_after_a_crash() -> None:
    machine = replica(LEADERS[0])
    assert machine.proposed is not None and len(machine.proposed.commit.participants) == 4
    again = HotStuffChain(
        machine.hard_state, signer=ToySigner(LEADERS[0]), gather_policy=EARLY, absent_rounds=8
    )  # which holds fewer payloads now
    effects = again.payload_stored(0, payload(FOUR[0], 0)) + again.payload_stored(0, payload(FOUR[1], 0))
    assert not proposed(effects + again.deadline(0))
    assert again.proposed == machine.proposed


def test_a_lock_that_no_quorum_has_prepared_is_refused() -> None:
    machine, other = leading(2), next(peer for peer in FOUR if peer != LEADERS[2])
    forged = Lock(commit(), certificate(commit(), 1, by=FOUR[:2]))
    effects = machine.receive(other, NewView(0, HEAD.digest, 2, forged))
    assert "no honest peer" in reasons(effects) and not proposed(effects)


class TwoSigner(ToySigner):
    """Ed25519 lets the owner of a key sign one statement in many ways: here in two."""

    def verify(self, peer: str, statement: statements.Statement, signature: bytes) -> bool:
        return super().verify(peer, statement, signature) or signature == toy_signature(peer, ("2", *statement))


def test_a_liar_that_signs_one_vote_twice_counts_once() -> None:
    machine = HotStuffChain(
        HardState.first(session=RUN, peer=LEADERS[0], roster=FOUR),
        signer=TwoSigner(LEADERS[0]),
        gather_policy=EARLY,
        absent_rounds=8,
    )
    for owner in FOUR:
        effects = machine.payload_stored(0, payload(owner, 0))
    (made,) = proposed(effects)
    liar = next(peer for peer in FOUR if peer != LEADERS[0])
    digest = made.commit.digest
    for signature in (toy_signature(liar, made.statement), toy_signature(liar, ("2", *made.statement))):
        machine.receive(liar, Vote(0, HEAD.digest, 0, PREPARE, digest, UNJUSTIFIED, signature))
    assert machine.lock is None


def committed(of: Commit, by: tuple[str, ...], view: int = 0) -> CommitCertificate:
    statement = statements.commit(of.number, of.parent, view, of.digest)
    return CommitCertificate(of, view, tuple((peer, toy_signature(peer, statement)) for peer in by), byzantine=True)


def test_a_decided_commit_is_applied_with_the_votes_of_a_quorum_alone() -> None:
    machine = follower()
    assert "valid votes from 2 of 4 peers, but needs 3" in reasons(machine.receive("k0", committed(commit(), FOUR[:2])))
    machine.receive("k0", committed(commit(), FOUR[1:]))
    assert machine.number == 1 and machine.hard_state.lock is None
    hard_state = machine.hard_state
    assert HardState.from_bytes(hard_state.to_bytes(), session=RUN, peer=hard_state.peer) == hard_state
    assert certificate_error(HEAD, machine.hard_state.log[-1], machine.signer) == ""


def test_a_certificate_needs_more_than_two_thirds_of_the_roster() -> None:
    """4 of 7 are a majority, but 2 of the 7 may lie: 5 are needed."""
    seven = tuple(f"p{index}" for index in range(7))
    head = genesis(RUN, seven)
    of = Commit(head.number + 1, head.digest, 0, (), seven)
    few = certificate_error(head, committed(of, seven[:4]), ToySigner("z"))
    assert few == f"commit {of.number} has valid votes from 4 of 7 peers, but needs 5"
    assert certificate_error(head, committed(of, seven[:5]), ToySigner("z")) == ""


def test_votes_to_prepare_are_no_votes_to_commit() -> None:
    forged = replace(committed(commit(), ()), accepts=certificate(commit(), 0).votes)
    assert "valid votes from 0 of 4 peers" in reasons(follower().receive("k0", forged))


def test_the_certificates_of_one_protocol_mean_nothing_in_the_other() -> None:
    assert "exchange.trust" in reasons(follower().receive("k0", decided_by(FOUR, commit())))
    paxos = PaxosChain(
        HardState.first(session=RUN, peer="k0", roster=FOUR),
        signer=ToySigner("k0"),
        gather_policy=EARLY,
        absent_rounds=8,
    )
    assert "exchange.trust" in reasons(paxos.receive("k1", committed(commit(), FOUR)))
    mixed = replace(committed(commit(), ()), accepts=tuple((peer, accept_of(peer, commit())) for peer in FOUR))
    assert "valid votes from 0 of 4 peers" in reasons(follower().receive("k0", mixed))


def test_a_message_of_a_later_round_leads_to_the_missing_commits() -> None:
    later = Vote(3, HEAD.digest, 0, PREPARE, commit().digest, UNJUSTIFIED, bytes(64))
    assert follower().receive("k0", later) == [CatchUp(3, "k0")]


@pytest.mark.parametrize("seed", range(20))
def test_two_liars_of_seven_that_split_the_others_between_two_commits_decide_one_at_most(seed: int) -> None:
    """With a majority, 4 of 7, both sides decide: two honest voters and the two liars each."""
    rng, names = random.Random(seed), [f"p{index}" for index in range(7)]
    leads = leader(RUN, genesis(RUN, names), 0)
    liars = f"{leads} {next(name for name in names if name != leads)}"
    world = HotStuffWorld(names, liars=liars, gather_policy=EARLY, rng=rng, absent_rounds=8)
    lying, hard_state = HotStuffLiars(world, rng), world[world.up[0]].hard_state
    lying.split(hard_state)
    for _ in range(6):
        lying.prepare(hard_state)
        lying.decide(hard_state)
        world.deliver_all()
    assert len(world.monitor.chosen) <= 2  # genesis and the first round, checked by the monitor


def test_an_honest_leader_waits_for_the_lock_of_a_single_honest_peer() -> None:
    """A liar led view 0 and gave the certificate to one peer alone; all that was sent in view 1 was lost."""
    world = HotStuffWorld(FOUR, liars=LEADERS[0], gather_policy=EARLY, absent_rounds=8)
    alone = next(peer for peer in world.honest if peer != LEADERS[2])
    for peer in world.honest:
        for owner in FOUR:
            world.give(peer, 0, payload(owner, 0))
        world.event(peer, lambda machine: machine.receive(LEADERS[0], proposal(commit())))
    prepared = Prepared(0, HEAD.digest, certificate(commit(), 0))
    world.event(alone, lambda machine: machine.receive(LEADERS[0], prepared))
    wishes = tuple(ViewWish(peer, 2, toy_signature(peer, statements.wish(0, HEAD.digest, 2))) for peer in FOUR)
    world.network.clear()
    for peer in sorted(world.honest, key=lambda peer: peer != LEADERS[2]):
        world.event(peer, lambda machine: machine.receive(LEADERS[1], ViewWishes(0, HEAD.digest, wishes)))
    world.deliver_all()
    assert all(world[peer].number == 0 for peer in world.honest)
    world.event(LEADERS[2], lambda machine: machine.reports_over(0, 2))
    world.deliver_all()
    assert {world[peer].hard_state.head.digest for peer in world.honest} == {commit().digest}
