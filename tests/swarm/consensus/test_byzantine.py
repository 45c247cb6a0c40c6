"""What a member that lies can do to the agreement, attack by attack; at the end all of it at random.

One of four lies unless a scene says otherwise. What is refused is refused by name, and the round goes on without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit, Participant, genesis, majority, next_demoted, turns
from outerloop.swarm.consensus.effects import Persist, Reject, Send
from outerloop.swarm.consensus.messages import Accept, JoinRequest, Promise, Propose, ViewChange, ViewWishes
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.roster_change import next_roster
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.consensus.view_change import certificate
from outerloop.swarm.consensus.votes import Accepted, ChainLink, CommitCertificate, Pledge, ViewWish
from outerloop.swarm.timeouts import LEAD_S
from outerloop.swarm.validation import MAX_VIEW, MalformedMessage
from tests.support.swarm.consensus_guilt import convicted
from tests.support.swarm.consensus_liar import LiarWorld
from tests.support.swarm.consensus_schedule import LiarSchedule, runs
from tests.support.swarm.consensus_world import RUN, World, payload
from tests.support.swarm.gather_liar import swarm_with_liar
from tests.support.swarm.gather_scene import INNER_S
from tests.support.swarm.toy_signatures import ToySigner, accept_of, decided_by, pledge_of, proposal, toy_signature
from tests.support.swarm.virtual_clock import virtual

FOUR = ("000-a", "001-b", "002-c", "003-d")
CLOSING = GatherPolicy(min_peers=2, min_fraction=1.0)


def four(*, absent_rounds: int = 2, allowed: Callable[[str], bool] = lambda name: True) -> PaxosChain:
    """The first of four peers, at the first round that the last of them leads in view 0, and it itself in view 3."""
    ends = FOUR[-1], FOUR[0]
    number = next(n for n in range(99) if (turns(RUN, n, FOUR)[0], turns(RUN, n, FOUR)[3]) == ends)
    hard_state = HardState.first(session=RUN, peer=FOUR[0], roster=FOUR, number=number)
    return PaxosChain(
        hard_state, signer=ToySigner(FOUR[0]), gather_policy=CLOSING, absent_rounds=absent_rounds, allowed=allowed
    )


def commit_of(
    hard_state: HardState, counted: Iterable[str], roster: Iterable[str], *, view: int = 0, **more: object
) -> Commit:
    participants = tuple(payload(peer, hard_state.number) for peer in sorted(counted))
    roster = tuple(sorted(roster))
    more.setdefault("demoted", next_demoted(RUN, hard_state.head, view, roster))
    return Commit(hard_state.number, hard_state.head.digest, view, participants, roster, **more)  # type: ignore[arg-type]


def ask_of(peer: str, hard_state: HardState) -> tuple[str, bytes]:
    return peer, toy_signature(peer, statements.ask(hard_state.number, hard_state.head.digest))


def wish_of(peer: str, hard_state: HardState, view: int) -> ViewWish:
    return ViewWish(peer, view, toy_signature(peer, statements.wish(hard_state.number, hard_state.head.digest, view)))


def here_of(peer: str, hard_state: HardState, view: int) -> ViewChange:
    return ViewChange(hard_state.number, hard_state.head.digest, view, wish_of(peer, hard_state, view).signature)


def wants(machine: PaxosChain, view: int, *peers: str) -> None:
    for peer in peers:
        machine.receive(peer, here_of(peer, machine.hard_state, view))


def hold_all(machine: PaxosChain, *peers: str) -> None:
    for peer in peers:
        machine.payload_stored(machine.number, payload(peer, machine.number))


def voted(machine: PaxosChain, commit: Commit) -> bool:
    return machine.hard_state.accepted is not None and machine.hard_state.accepted.commit == commit


# rosters

ROSTERS: list[tuple[str, list[str], list[str], list[str], str]] = [
    ("nobody it knows", [*FOUR], [*FOUR, "004-e"], [], "admits 004-e, whose payload it does not include"),
    ("a thousand dead ids", [*FOUR], [*FOUR, *(f"{i}-x{i}" for i in range(100, 999))], [], "whose payload it does not"),
    ("more names of its key", [*FOUR], [*FOUR, "100-d", "101-d"], [], "whose payload it does not include"),
    ("its key twice, both counted", [*FOUR, "100-d"], [*FOUR, "100-d"], ["100-d"], "under another name"),
    ("an honest key twice", [*FOUR, "100-b"], [*FOUR, "100-b"], ["100-b"], "under another name"),
    ("an honest peer dropped", ["000-a", "003-d"], ["000-a", "003-d"], [],
     "drops 001-b, which did not miss 2 rounds in a row"),
    ("one that takes part dropped", [*FOUR], [*FOUR[:2], "003-d"], [], "drops peers that take part"),
    ("a newcomer that did not ask", [*FOUR, "004-e"], [*FOUR, "004-e"], [], "includes learners other than those that"),
    ("a newcomer left out again", [*FOUR, "004-e"], [*FOUR], ["004-e"],
     "a next roster of 4 peers, not the expected roster of 5"),
    ("more newcomers than there is room", ["000-a", "001-b", "003-d", "004-e", "005-f"], [*FOUR, "004-e", "005-f"],
     ["004-e", "005-f"], "a next roster of 6 peers, not the expected roster of 5"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("counted", "roster", "asks", "why"), [one[1:] for one in ROSTERS], ids=[o[0] for o in ROSTERS]
)
def test_no_roster_but_the_one_that_follows_is_voted_for(
    counted: list[str], roster: list[str], asks: list[str], why: str
) -> None:
    """Not as a proposal, nor as what somebody has accepted, nor decided by all of the roster."""
    machine = four()
    hard_state = machine.hard_state
    commit = commit_of(hard_state, counted, roster, asks=tuple(ask_of(peer, hard_state) for peer in asks))
    hold_all(machine, *counted)
    view = next(view for view in range(1, 9) if hard_state.leader(view) == hard_state.peer)
    accepted = proposal(commit, roster=FOUR)
    said = statements.promise(hard_state.number, hard_state.head.digest, view, accepted.vote)
    promise = Promise(hard_state.number, hard_state.head.digest, view, accepted, toy_signature(FOUR[-1], said))
    for message in (Propose(accepted), promise, decided_by(FOUR, commit)):
        refused, *wishes = machine.receive(FOUR[-1], message)
        assert isinstance(refused, Reject) and why in refused.reason, message
        assert bool(wishes) == isinstance(message, Propose), "the leader has used up its view"
    assert machine.hard_state == hard_state


def test_a_leader_that_proposes_what_nobody_may_accept_is_left_at_once() -> None:
    """Without a timer: a majority wants the next view as soon as each of it has seen that proposal."""
    machine = four()
    hard_state, wrong = machine.hard_state, commit_of(machine.hard_state, FOUR, [*FOUR, "004-e"])
    hold_all(machine, *FOUR)
    refused, *told = machine.receive(FOUR[-1], Propose(proposal(wrong, roster=FOUR)))
    assert isinstance(refused, Reject)
    assert told == [Send(peer, here_of(FOUR[0], hard_state, 1)) for peer in FOUR[1:]]
    again = machine.receive(FOUR[-1], Propose(proposal(wrong, roster=FOUR)))
    assert again == [refused], "told once, however often it is proposed"
    wants(machine, 1, FOUR[1])
    assert machine.view == 0, "two of four are no majority"
    wants(machine, 1, FOUR[2])
    assert machine.view == 1


def test_a_leader_is_not_left_for_what_others_may_accept() -> None:
    machine = four(allowed=lambda name: name != "001-b")
    hold_all(machine, *FOUR)
    (refused,) = machine.receive(FOUR[-1], Propose(proposal(commit_of(machine.hard_state, FOUR, FOUR), roster=FOUR)))
    assert isinstance(refused, Reject) and "may not take part" in refused.reason


def test_a_newcomer_counts_by_its_own_request_for_this_round_alone() -> None:
    machine = four()
    hard_state, counted = machine.hard_state, [*FOUR, "004-e"]
    hold_all(machine, *counted)
    older = statements.ask(hard_state.number - 1, hard_state.head.digest)
    elsewhere = statements.ask(hard_state.number, bytes(32))
    forged = [ask_of("003-d", hard_state)[1], toy_signature("004-e", older), toy_signature("004-e", elsewhere)]
    for signature in forged:
        commit = commit_of(hard_state, counted, counted, asks=(("004-e", signature),))
        refused, *_ = machine.receive(FOUR[-1], Propose(proposal(commit, roster=FOUR)))
        assert isinstance(refused, Reject) and "004-e, which has not asked" in refused.reason
    commit = commit_of(hard_state, counted, counted, asks=(ask_of("004-e", hard_state),))
    machine.receive(FOUR[-1], Propose(proposal(commit, roster=FOUR)))
    assert voted(machine, commit)


@pytest.mark.parametrize("proposed", [False, True])
def test_the_requests_in_a_commit_are_verified_only_once_the_commit_is_proven(
    proposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone can sign requests to join with keys of its own, and each costs a verification."""
    machine, verified = four(), list[str]()
    hard_state, newcomers = machine.hard_state, [f"{index:03d}-n{index}" for index in range(4, 104)]
    asks = tuple(ask_of(peer, hard_state) for peer in newcomers)
    commit = commit_of(hard_state, [*FOUR, *newcomers], FOUR, view=int(proposed), asks=asks)
    leader = hard_state.leader(1)
    unjustified = Accepted(commit, (ChainLink(1, (), accept_of(leader, commit, 1)),))

    def verify(signer: ToySigner, peer: str, statement: Statement, signature: bytes) -> bool:
        verified.append(str(statement[0]))
        return signature == toy_signature(peer, statement)

    monkeypatch.setattr(ToySigner, "verify", verify)
    message = Propose(unjustified) if proposed else decided_by(["004-n4"], commit)
    (refused,) = machine.receive(leader if proposed else "004-n4", message)
    assert isinstance(refused, Reject) and ("promises" if proposed else "accepts from 0 of 4 peers") in refused.reason
    assert "ask" not in verified
    machine.receive(FOUR[1], decided_by(FOUR[1:], replace(commit, view=0, demoted=())))
    assert "ask" in verified, "once three of four have accepted it"


def test_a_peer_outside_the_list_gets_no_vote_but_a_decided_commit_with_it_is_followed() -> None:
    machine = four(allowed=lambda name: name != "004-e")
    hard_state, counted = machine.hard_state, [*FOUR, "004-e"]
    hold_all(machine, *counted)
    commit = commit_of(hard_state, counted, counted, asks=(ask_of("004-e", hard_state),))
    (refused,) = machine.receive(FOUR[-1], Propose(proposal(commit, roster=FOUR)))
    assert isinstance(refused, Reject) and "004-e, which may not take part" in refused.reason
    assert (
        machine.receive("004-e", JoinRequest(hard_state.number, hard_state.head.digest, ask_of("004-e", hard_state)[1]))
        == []
    )
    assert not machine.soft_state.asked
    machine.receive(FOUR[1], decided_by(FOUR[1:], commit))
    assert machine.hard_state.roster == tuple(counted), "the same on all, whatever their lists"


def test_one_key_asks_for_one_seat() -> None:
    machine = four()
    hard_state = machine.hard_state
    for name in ("004-e", "104-e", "100-b", "204-e"):
        machine.receive(name, JoinRequest(hard_state.number, hard_state.head.digest, ask_of(name, hard_state)[1]))
    assert machine.soft_state.asked == {"004-e"}
    with pytest.raises(MalformedMessage, match="names a peer twice"):
        genesis(RUN, ["000-a", "001-b", "100-a"])


def test_a_log_that_is_too_short_votes_for_nobody_s_leaving_and_follows_it_once_decided() -> None:
    first = four(absent_rounds=3).hard_state
    started = decided_by(FOUR, commit_of(first, FOUR, FOUR))
    hard_state = HardState(RUN, FOUR[1], (started,))  # as after a download
    number = hard_state.number
    dropped = commit_of(hard_state, FOUR[:3], FOUR[:3])
    stays = commit_of(hard_state, FOUR[:3], FOUR)
    assert hard_state.leader(0) != hard_state.peer
    for commit in (dropped, stays):
        machine = PaxosChain(hard_state, signer=ToySigner(FOUR[1]), gather_policy=CLOSING, absent_rounds=3)
        for peer in FOUR[:3]:
            machine.payload_stored(number, payload(peer, number))
        machine.receive(hard_state.leader(0), Propose(proposal(commit, roster=FOUR)))
        assert voted(machine, commit) == (commit is stays)
        machine.receive(FOUR[2], decided_by(FOUR[1:], dropped))
        assert machine.hard_state.roster == FOUR[:3]


def test_a_liar_s_word_alone_lets_nobody_in_that_the_others_do_not_allow() -> None:
    """It proposes a friend, accepts, and tells the next leader so: that one goes by what the others promise."""
    machine = four(allowed=lambda name: name != "004-e")
    hard_state, counted = machine.hard_state, [*FOUR, "004-e"]
    lie = proposal(commit_of(hard_state, counted, counted, asks=(ask_of("004-e", hard_state),)), roster=FOUR)
    hold_all(machine, *counted)
    view = next(view for view in range(1, 9) if hard_state.leader(view) == hard_state.peer)
    wants(machine, view, *FOUR[1:])
    assert machine.view == view and machine.leads
    for peer, accepted in ((FOUR[3], lie), (FOUR[1], None), (FOUR[2], None)):
        assert machine.proposed is None, "promises of three of four, one of them the liar's, are not enough"
        vote = accepted.vote if accepted else None
        signature = toy_signature(peer, statements.promise(hard_state.number, hard_state.head.digest, view, vote))
        machine.receive(peer, Promise(hard_state.number, hard_state.head.digest, view, accepted, signature))
    assert machine.proposed and machine.proposed.commit.roster == FOUR


FIVE = ("000-a", "001-b", "002-c", "003-d", "004-e")


@pytest.mark.parametrize("roster", [FIVE, FIVE[:3]], ids=["two of five", "one of three"])
def test_fewer_than_half_that_lead_one_after_the_other_drop_nobody(roster: tuple[str, ...]) -> None:
    """They count themselves alone, again and again; the payloads of the others lie on all disks."""
    liars = roster[-1:] if len(roster) == 3 else roster[-2:]
    counted = [roster[0], *liars] if len(liars) == 1 else [*liars]
    led = [{turns(RUN, number + more, roster)[0] for more in (0, 1)} for number in range(99)]
    hard_state = HardState.first(session=RUN, peer=roster[0], roster=roster, number=led.index({*liars}))
    machine = PaxosChain(hard_state, signer=ToySigner(roster[0]), gather_policy=CLOSING, absent_rounds=2)
    machine.receive(roster[1], decided_by(roster, commit_of(hard_state, counted, roster)))
    assert machine.number == hard_state.number + 1
    hold_all(machine, *roster)
    usurped = commit_of(machine.hard_state, counted, counted)
    for message in (Propose(proposal(usurped, roster=roster)), decided_by(roster, usurped)):
        refused, *_ = machine.receive(machine.hard_state.leader(0), message)
        assert isinstance(refused, Reject) and "which did not miss 2 rounds in a row" in refused.reason
    stays = commit_of(machine.hard_state, counted, roster)
    machine.receive(machine.hard_state.leader(0), Propose(proposal(stays, roster=roster)))
    assert voted(machine, stays), "leaving out is not dropping"


def test_a_peer_leaves_once_an_honest_leader_has_left_it_out_as_well() -> None:
    history = [commit_of(HardState.first(session=RUN, peer=FIVE[0], roster=FIVE), (), FIVE)]
    leaders = []
    while len(set(leaders)) < 3:
        leaders.append(turns(RUN, history[-1].number + 1, FIVE)[0])
        here = [payload(peer, history[-1].number + 1) for peer in FIVE[:3]]
        roster = next_roster(history, here, session=RUN, view=0, absent_rounds=2)
        assert roster == (FIVE[:3] if len(set(leaders)) == 3 else FIVE)
        history.append(Commit(history[-1].number + 1, history[-1].digest, 0, tuple(here), roster))


# views


def test_a_wish_for_a_later_view_counts_for_the_earlier_ones() -> None:
    """Three of four peers are needed: two want view 1, and one view 2."""
    hard_state = four().hard_state
    wishes = [wish_of(peer, hard_state, view) for peer, view in zip(FOUR, (1, 1, 2), strict=False)]
    assert certificate(wishes, 1, needed=3) == tuple(wishes)
    assert certificate(wishes, 2, needed=3) == ()


def test_no_liar_moves_a_view_however_high_and_the_rounds_go_on_also_from_disk() -> None:
    """It says it wants the last view there is, promises it, and shows certificates; then it is gone for good."""
    machine = four()
    hard_state, liar = machine.hard_state, FOUR[-1]
    head, number = hard_state.head.digest, hard_state.number
    told = [wish_of(peer, hard_state, 1) for peer in (FOUR[1], liar)]
    forged = [ViewWish(peer, MAX_VIEW, wish_of(liar, hard_state, MAX_VIEW).signature) for peer in FOUR]
    for view in (1, 2, MAX_VIEW):
        said = statements.promise(number, head, view, None)
        for message in (
            here_of(liar, hard_state, view),
            Promise(number, head, view, None, toy_signature(liar, said)),
            ViewWishes(number, head, tuple(forged)),
            ViewWishes(number, head, (*told[:1], wish_of(liar, hard_state, view))),
            ViewWishes(number, head, tuple(sorted(told))),
        ):
            outputs = machine.receive(liar, message)
            assert not any(isinstance(one, Persist) for one in outputs)
            assert machine.view == 0 and machine.hard_state == hard_state, message
    machine.receive(FOUR[2], here_of(FOUR[2], hard_state, 1))
    assert machine.view == 1, "three of four want it: two of them are honest"


def test_the_view_is_the_one_that_a_majority_wants_whatever_one_says() -> None:
    machine = four()
    wants(machine, MAX_VIEW, FOUR[3])
    wants(machine, 2, FOUR[1])
    assert machine.view == 0 and machine.overdue
    machine.timeout(machine.number, 0)
    assert machine.view == 1, "its own wish is for the next view alone"
    wants(machine, 2, FOUR[2])
    assert machine.view == 2


def test_patience_runs_for_more_than_one_of_four() -> None:
    machine = four()
    wants(machine, 1, FOUR[3])
    assert not machine.overdue
    wants(machine, 1, FOUR[1])
    assert machine.overdue and machine.view == 0


def test_a_message_of_a_later_view_is_asked_about_and_a_certificate_answers() -> None:
    machine = four()
    hard_state = machine.hard_state
    view = next(view for view in range(2, 9) if hard_state.leader(view) == hard_state.peer)
    said = statements.promise(hard_state.number, hard_state.head.digest, view, None)
    promise = Promise(hard_state.number, hard_state.head.digest, view, None, toy_signature(FOUR[1], said))
    assert machine.receive(FOUR[1], promise) == [Send(FOUR[1], here_of(FOUR[0], hard_state, 0))]
    certificate = ViewWishes(
        hard_state.number, hard_state.head.digest, tuple(wish_of(peer, hard_state, view) for peer in FOUR[1:])
    )
    outputs = machine.receive(FOUR[1], certificate)
    assert machine.view == view and outputs[1:] == [Send(peer, certificate) for peer in FOUR[1:]]
    assert set(machine.soft_state.promises_of(view)) == {FOUR[1]}, "the promise that came early is not lost"
    behind = here_of(FOUR[2], hard_state, 1)
    assert machine.receive(FOUR[2], behind) == [Send(FOUR[2], certificate)]


def test_wishes_that_a_crash_took_are_made_up_for_by_timeouts() -> None:
    world = World("abcd", gather_policy=CLOSING)
    for _ in range(3):
        for peer in "abc":
            world.event(peer, lambda machine: machine.timeout(machine.number, machine.view))
        world.deliver_all()
    assert [world[peer].view for peer in "abc"] == [3] * 3
    for peer in "abcd":
        world.crash(peer)
    world.peers["b"].disk = replace(world.peers["b"].disk, promised=1)
    for peer in "abc":
        world.start(peer)
    for _ in range(3):
        for peer in "abc":
            world.event(peer, lambda machine: machine.timeout(machine.number, machine.view))
        world.deliver_all()
    assert len({world[peer].view for peer in "abc"}) == 1 and world["a"].view >= 4


@pytest.mark.parametrize("gone", [False, True])
@virtual
async def test_rounds_go_on_at_their_pace_while_one_of_four_tries_to_grab_views(gone: bool) -> None:
    """Real signatures, virtual time. It tells all the last view in every round, and all else of later views."""
    swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: liar.offer(liar.seal(b"d", number)))
    await swarm.until("abc", 1)
    for rounds in range(2, 6):
        hard_state = swarm["a"].rounds.context.chain.hard_state
        for letter in "abc" if rounds < 4 or not gone else "":
            for view in (1, 2, 1000, MAX_VIEW):
                await liar.say(letter, liar.here(hard_state, view))
        if gone and rounds == 3:
            swarm.network.kill(liar.link.peer_id)
        await swarm.until("abc", rounds, limit_s=2 * INNER_S + 4 * LEAD_S)
        assert max(swarm[letter].rounds.context.chain.view for letter in "abc") <= 2
    swarm.agree()


# proposals


def justified(hard_state: HardState, view: int, commit: Commit, told: dict[str, tuple[int, bytes] | None]) -> ChainLink:
    pledges = tuple(pledge_of(peer, commit, view, told[peer]) for peer in sorted(told))
    return ChainLink(view, pledges, accept_of(hard_state.leader(view), commit, view))


UNJUSTIFIED: list[tuple[str, Callable[[HardState, Commit, Commit], tuple[ChainLink, ...]], str]] = [
    ("no promises", lambda m, own, x: (justified(m, 1, own, {}),), "0 of its 0 promises"),
    ("promises of two of four", lambda m, own, x: (justified(m, 1, own, dict.fromkeys(FOUR[:2])),), "2 of its 2"),
    ("promises of strangers",
     lambda m, own, x: (justified(m, 1, own, dict.fromkeys(["000-x", "001-y", "002-z"])),), "0 of its 3 promises"),
    ("promises that others did not sign",
     lambda m, own, x: (ChainLink(1, tuple(Pledge(peer, None, bytes(64)) for peer in FOUR[:3]),
                             accept_of(m.leader(1), own, 1)),), "0 of its 3 promises"),
    ("promises of another view",
     lambda m, own, x: (replace_view(justified(m, 2, own, dict.fromkeys(FOUR[:3])), 1, m, own),), "0 of its 3"),
    ("its own choice where another was accepted",
     lambda m, own, x: (justified(m, 1, own, {FOUR[0]: None, FOUR[1]: (0, x.digest), FOUR[2]: None}),),
     "report a commit that was accepted in view 0"),
    ("no signature of the leader",
     lambda m, own, x: (justified(m, 1, own, dict.fromkeys(FOUR[:3]))._replace(signature=bytes(64)),), "which leads"),
]  # fmt: skip


def replace_view(link: ChainLink, view: int, hard_state: HardState, commit: Commit) -> ChainLink:
    return ChainLink(view, link.pledges, accept_of(hard_state.leader(view), commit, view))


@pytest.mark.parametrize(("links", "why"), [one[1:] for one in UNJUSTIFIED], ids=[one[0] for one in UNJUSTIFIED])
def test_a_later_proposal_is_accepted_only_with_the_promises_that_justify_it(
    links: Callable[[HardState, Commit, Commit], tuple[ChainLink, ...]], why: str
) -> None:
    machine = four()
    hard_state = machine.hard_state
    hold_all(machine, *FOUR)
    own, chosen = commit_of(hard_state, FOUR, FOUR, view=1), commit_of(hard_state, FOUR[:3], FOUR)
    (refused,) = machine.receive(hard_state.leader(1), Propose(Accepted(own, links(hard_state, own, chosen))))
    assert isinstance(refused, Reject) and why in refused.reason
    assert machine.hard_state == hard_state
    right = justified(hard_state, 1, own, dict.fromkeys(FOUR[:3]))
    machine.receive(hard_state.leader(1), Propose(Accepted(own, (right,))))
    assert voted(machine, own) and machine.view == 1, "the promises prove the view as well"


def test_an_earlier_proposal_is_proposed_again_with_its_justification() -> None:
    machine = four()
    hard_state = machine.hard_state
    hold_all(machine, *FOUR)
    commit = commit_of(hard_state, FOUR, FOUR)
    first = ChainLink(0, (), accept_of(hard_state.leader(0), commit))
    told = {FOUR[1]: None, FOUR[2]: (0, commit.digest), FOUR[3]: None}
    again = justified(hard_state, 2, commit, told)
    jumped = justified(hard_state, 2, commit, {FOUR[1]: None, FOUR[2]: (1, bytes(32)), FOUR[3]: (0, commit.digest)})
    skipped = justified(hard_state, 2, commit, {FOUR[1]: None, FOUR[2]: (1, commit.digest), FOUR[3]: None})
    for links, why in (
        ((again,), "does not show that commit"),
        ((first._replace(signature=bytes(64)), again), "does not show that"),
        ((first, jumped), "do not report this commit as the last accepted one, in view 0"),
        ((first, skipped), "do not report this commit as the last accepted one, in view 0"),
        ((first, justified(hard_state, 2, commit, dict.fromkeys(FOUR[:3]))), "do not report this commit"),
    ):
        (refused,) = machine.receive(hard_state.leader(2), Propose(Accepted(commit, links)))
        assert isinstance(refused, Reject) and why in refused.reason
        decided = CommitCertificate(commit, 2, decided_by(FOUR[1:], commit, 2).accepts, links)
        (refused,) = machine.receive(FOUR[1], decided)
        assert isinstance(refused, Reject) and why in refused.reason
    machine.receive(hard_state.leader(2), Propose(Accepted(commit, (first, again))))
    assert voted(machine, commit) and machine.view == 2


def test_a_leader_that_proposes_two_commits_in_a_view_is_refused_before_and_after_the_first_is_accepted() -> None:
    machine = four()
    hard_state = machine.hard_state
    one, other = commit_of(hard_state, FOUR, FOUR), commit_of(hard_state, FOUR[:3], FOUR)
    machine.receive(FOUR[-1], Propose(proposal(one, roster=FOUR)))
    for _ in range(2):
        (refused,) = machine.receive(FOUR[-1], Propose(proposal(other, roster=FOUR)))
        assert isinstance(refused, Reject) and "two commits in view 0" in refused.reason
        hold_all(machine, *FOUR)
    assert voted(machine, one)


# forks


@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_a_fork_of_a_bare_majority_convicts_who_made_it(names: str) -> None:
    """Two halves that do not hear of each other: each is shown a commit that it and the liar have accepted."""
    liar = turns(RUN, 0, tuple(names))[0]
    world = LiarWorld(names, liars=liar, gather_policy=GatherPolicy(min_peers=1, min_fraction=0.0))
    honest = [name for name in names if name != liar]
    halves = honest[: len(honest) // 2], honest[len(honest) // 2 :]
    hard_state = world[honest[0]].hard_state
    commits = [commit_of(hard_state, half, names) for half in halves]
    for half, commit in zip(halves, commits, strict=True):
        for peer in half:
            for owner in half:
                world.give(peer, 0, payload(owner, 0))
            world.say(peer, Propose(proposal(commit, roster=names)))
        world.deliver_all()
        assert 1 + len(half) >= majority(tuple(names))
        for peer in half:
            world.say(peer, decided_by([*half, liar], commit))
        world.deliver_all()
    assert world.witness.forked and convicted(world.known, names) == {liar}


def test_one_of_four_forks_nothing() -> None:
    """Any two majorities share two peers, one of them honest. What the liar shows to the smaller part has none."""
    world = LiarWorld(FOUR, liars=turns(RUN, 0, FOUR)[0], gather_policy=GatherPolicy(min_peers=1, min_fraction=0.0))
    honest = [name for name in FOUR if name not in world.liars]
    hard_state = world[honest[0]].hard_state
    for half in (honest[:1], honest[1:]):
        commit = commit_of(hard_state, half, FOUR)
        for peer in half:
            for owner in half:
                world.give(peer, 0, payload(owner, 0))
            world.say(peer, Propose(proposal(commit, roster=FOUR)))
        world.deliver_all()
        world.say(half[0], decided_by([*half, *world.liars], commit))
        world.deliver_all()
    assert not world.witness.forked and len(world.witness.commits[0]) == 1


HIDES: list[tuple[str, tuple[int, bytes] | None, bool]] = [
    ("nothing", None, True),
    ("less", (0, b"y" * 32), True),
    ("another", (1, b"y" * 32), True),
    ("the same", (1, b"x" * 32), False),
    ("a later one", (2, b"y" * 32), False),
]


@pytest.mark.parametrize(("told", "guilty"), [one[1:] for one in HIDES], ids=[one[0] for one in HIDES])
def test_only_a_peer_that_hides_its_accepted_proposal_is_convicted(
    told: tuple[int, bytes] | None, guilty: bool
) -> None:
    commit = Commit(0, bytes(32), 3, (Participant("a", bytes(32), 1),), ("a", "b"))
    link = ChainLink(3, (pledge_of("b", commit, 3, told),), bytes(64))
    accept = statements.accept(0, bytes(32), 1, b"x" * 32)
    said = [
        ("b", Accept(0, bytes(32), 1, b"x" * 32, toy_signature("b", accept))),
        ("a", Propose(Accepted(commit, (link,)))),
        ("a", Accept(0, bytes(32), 1, b"z" * 32, toy_signature("a", accept))),
    ]
    assert convicted(said, ["a", "b"]) == ({"b"} if guilty else set())


# chains that part, and what peers do who hear of both


def chain(trunk: HardState, by: str, lengths: int, *, view: int = 0) -> list[CommitCertificate]:
    """So many commits, all signed by these letters; the first is proposed in this view."""
    names = [name for name in FIVE if name[-1] in by]
    hard_state, out = trunk, []
    for count in range(lengths):
        commit = commit_of(hard_state, names, FIVE, view=0 if count else view)
        out.append(decided_by(names, commit, commit.view))
        hard_state = hard_state.learned(out[-1])
    return out


def meet(one: int, other: int, *, better_first: bool, before: int = 2) -> tuple[LiarWorld, list[CommitCertificate]]:
    """000-a and 001-b go this many rounds one way, 002-c and 003-d another way, with the help of 004-e; then all meet.

    The commits of the better chain come back.
    """
    world = LiarWorld(FIVE, liars=FIVE[-1], gather_policy=GatherPolicy(min_peers=1, min_fraction=1.0), absent_rounds=8)
    trunk = HardState.first(session=RUN, peer="z", roster=FIVE)
    common = chain(trunk, "abcde", before)
    for decided in common:
        trunk = trunk.learned(decided)
    left = chain(trunk, "abe", one, view=0 if better_first else 1)
    right = chain(trunk, "cde", other, view=1 if better_first else 0)
    for one_of in (*common, *left, *right):
        commit = one_of.commit
        world.witness.votes |= {(peer, commit.number, one_of.view, commit.digest) for peer, _ in one_of.accepts}
    for names, log in ((FIVE[:2], left), (FIVE[2:4], right)):
        for name in names:
            for decided in (*common, *log):
                world.event(name, lambda machine, decided=decided: machine.receive(FIVE[-1], decided))
            assert world[name].number == before + len(log)
    return world, left if better_first else right


def go_on(world: LiarWorld, views: int = 12) -> None:
    for _ in range(views):
        for name in world.up:
            for owner in world.up:
                world.give(name, world[name].number, payload(owner, world[name].number))
            world.event(name, lambda machine: machine.deadline(machine.number))
        world.deliver_all()
        for name in world.up:
            world.event(name, lambda machine: machine.timeout(machine.number, machine.view))
        world.deliver_all()


@pytest.mark.parametrize("better_first", [True, False])
@pytest.mark.parametrize("other", [1, 2, 4, 7])
@pytest.mark.parametrize("one", [1, 2, 4, 7])
def test_a_fork_heals_to_the_better_chain_whichever_is_longer(one: int, other: int, better_first: bool) -> None:
    """The liar says nothing any more, and neither side has three of five without the other."""
    world, better = meet(one, other, better_first=better_first)
    go_on(world, views=1)
    logs = [{decided.commit for decided in world[name].hard_state.log} for name in world.up]
    assert all(better[-1].commit in log for log in logs), "one chain"
    assert convicted(world.known, FIVE) == {FIVE[-1]}
    go_on(world)
    assert len({world[name].hard_state.head.digest for name in world.up}) == 1
    assert min(world[name].number for name in world.up) > 4 + len(better)


@pytest.mark.parametrize("better_first", [True, False])
def test_a_fork_that_is_older_than_the_logs_is_told_and_stops_nobody_who_can_go_on(better_first: bool) -> None:
    world, _ = meet(10, 10, better_first=better_first)
    heads = {name: world[name].hard_state.head for name in world.up}
    go_on(world, views=2)
    assert {name: world[name].hard_state.head for name in world.up} == heads
    told = [
        (name, refused)
        for name, refused in world.refused
        if "earlier than the logs reach: these are two runs" in refused.reason
    ]
    assert {name for name, _ in told} == set(world.up)
    assert convicted(world.circulated, FIVE) <= {FIVE[-1]}


def apply(*decided: CommitCertificate, peer: str = FIVE[0]) -> PaxosChain:
    """The machine of a peer that has landed these."""
    hard_state = HardState.first(session=RUN, peer=peer, roster=FIVE)
    machine = PaxosChain(
        hard_state, signer=ToySigner(peer), gather_policy=GatherPolicy(min_peers=1, min_fraction=1.0), absent_rounds=8
    )
    for one in decided:
        machine.receive(FIVE[1], one)
    assert machine.number == len(decided)
    return machine


START = HardState.first(session=RUN, peer="z", roster=FIVE)


def test_a_log_that_is_no_chain_moves_nobody_and_takes_no_vote_away() -> None:
    """The better commit is true, the log around it is made up: it would lead back to the chain that was left."""
    (ours,), (better,) = chain(START, "abe", 1, view=1), chain(START, "cde", 1)
    machine = apply(ours)
    hard_state = machine.hard_state
    following = commit_of(hard_state, FIVE, FIVE)
    machine.soft_state = replace(machine.soft_state, proposal=None)
    hold_all(machine, *FIVE)
    leads = hard_state.leader(0)
    if leads != FIVE[0]:
        machine.receive(leads, Propose(proposal(following, roster=FIVE)))
    else:
        machine.deadline(machine.number)
    before = machine.hard_state
    assert before.accepted is not None
    for log in ([ours, better], [better, ours], [], [better, better], [*hard_state.log, better]):
        outputs = machine.compare_log(FIVE[4], log)
        assert all(isinstance(one, Reject) and "do not follow one another" in one.reason for one in outputs)
        assert outputs and machine.hard_state == before
    machine.compare_log(FIVE[4], [better])
    assert machine.hard_state.head == better.commit and machine.hard_state.accepted is None


def test_a_peer_that_left_a_chain_never_returns_to_it() -> None:
    """One commit has certificates of several views: which chain is better does not go by them."""
    (first,), (other,) = chain(START, "abe", 1), chain(START, "cde", 1)
    low, high = sorted((first, other), key=lambda one: one.commit.digest)
    again = decided_by([peer for peer, _ in low.accepts], low.commit, 2, roster=FIVE)
    machine = apply(low)
    assert machine.compare_log(FIVE[2], [high]) == [] and machine.hard_state.head == low.commit
    machine = apply(again)
    assert machine.compare_log(FIVE[2], [high]) == [] and machine.hard_state.head == low.commit
    machine = apply(high)
    machine.compare_log(FIVE[2], [again])
    assert machine.hard_state.head == low.commit
    assert machine.compare_log(FIVE[2], [high]) == [] and machine.hard_state.head == low.commit


def test_nobody_votes_again_where_it_has_voted_on_a_chain_that_it_left() -> None:
    """It hears later that most peers are on the chain that it left, and downloads the state as of its last commit."""
    worse, better = chain(START, "cde", 3, view=1), chain(START, "abe", 1)
    machine = apply(*worse)
    machine.compare_log(FIVE[1], better)
    assert machine.number == 1 and machine.votes
    machine.install_snapshot(worse[2])
    assert machine.hard_state.head == worse[2].commit and not machine.votes
    assert not HardState.from_bytes(machine.hard_state.to_bytes(), session=RUN, peer=FIVE[0]).votes
    later = START.learned(worse[0]).learned(worse[1]).learned(worse[2])
    machine.receive(FIVE[1], decided_by(FIVE, commit_of(later, FIVE, FIVE)))
    assert machine.number == 4 and machine.votes


@pytest.mark.parametrize("behind", [1, 2])
def test_a_message_of_an_earlier_round_shows_another_chain_as_well(behind: int) -> None:
    longer, shorter = chain(START, "abe", 3), chain(START, "cde", 3, view=1)[: 3 - behind]
    machine = apply(*longer)
    hard_state = START.learned(shorter[0]) if behind == 2 else START.learned(shorter[0]).learned(shorter[1])
    (told, refused) = machine.receive(FIVE[2], here_of(FIVE[2], hard_state, 0))
    assert isinstance(told, Send) and isinstance(told.message, ViewChange)
    assert isinstance(refused, Reject) and refused.compare_logs
    assert len(machine.receive(FIVE[2], here_of(FIVE[2], START.learned(longer[0]), 0))) == 1, "the same chain"


# all of it at random

QUICK, SLOW, BLOCKS = 250, 50_000, 25


def ends(seeds: Iterable[int]) -> Counter[str]:
    """Return what came of the schedules, and how often."""
    return Counter(schedule.ended for schedule in runs(LiarSchedule, seeds))


def test_whatever_few_lie_the_others_go_on_and_every_fork_convicts_a_liar_and_heals() -> None:
    found = ends(range(QUICK))
    assert found["without a fork"] > QUICK / 2 and found["healed"] > 0, "where nothing goes wrong nothing is proven"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_same_of_fifty_thousand_schedules(block: int) -> None:
    ends(range(QUICK + block * SLOW // BLOCKS, QUICK + (block + 1) * SLOW // BLOCKS))


@pytest.mark.parametrize("demoted", [(FOUR[0],), FOUR[1:3], ("900-x",)])
def test_a_leader_that_demotes_others_than_failed_is_refused(demoted: tuple[str, ...]) -> None:
    machine = four()
    commit = commit_of(machine.hard_state, FOUR, FOUR, demoted=demoted)
    refused, *_ = machine.receive(FOUR[3], Propose(proposal(commit, roster=FOUR)))
    assert isinstance(refused, Reject) and f"demotes {', '.join(demoted)}, but the failed views" in refused.reason
    assert machine.hard_state.accepted is None and machine.soft_state.proposal is None
