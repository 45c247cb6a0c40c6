"""The lies of a peer against HotStuff-2 are what they claim to be, and are counted when they are sent."""

from collections import Counter, deque

import msgpack
import pytest
from faulty import hotstuff_lies
from faulty.common_lies import VIEWS
from faulty.forging import ALIASES, FAR
from faulty.lie import Liar

from outerloop.swarm.accountability.contradictions import contradiction
from outerloop.swarm.consensus.effects import ApplyCommit, Send
from outerloop.swarm.consensus.hotstuff.chain import HotStuffChain
from outerloop.swarm.consensus.hotstuff.messages import NewView, Prepared, ProposalMessage, Vote
from outerloop.swarm.consensus.messages import ViewChange, from_map, to_map
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.state import HardState
from tests.support.swarm.consensus_world import payload
from tests.support.swarm.toy_signatures import SESSION, ToySigner

NAMES = [f"{index:03d}-{letter}" for index, letter in enumerate("abcdefg")]
CAUGHT = "voted twice"


class Peers:
    """Seven peers of HotStuff-2 whose messages arrive at once. `liar`: the leader of view 0, which has the lie `now`.

    `reached`: the messages that honest peers receive from the liar.
    """

    def __init__(self, now: str = "") -> None:
        self.now, self.expressed, self.reached = now, Counter(), []
        first = HardState.first(session=SESSION, peer=NAMES[0], roster=NAMES)
        self.liar = first.leader(0)
        self.by_name = {name: self.chain(name) for name in NAMES}
        self.machine = self.by_name[self.liar]
        self.lies = Liar(lambda: self.now, lambda lie: self.expressed.update([lie]))
        self.applied = {name: [] for name in NAMES}
        self.network: deque = deque()

    def chain(self, name: str) -> HotStuffChain:
        policy = GatherPolicy(min_peers=2, min_fraction=0.0)
        hard_state = HardState.first(session=SESSION, peer=name, roster=NAMES)
        return HotStuffChain(hard_state, signer=ToySigner(name), gather_policy=policy, absent_rounds=2)

    def gather(self, number: int = 0) -> None:
        """Store all payloads of a round everywhere, and deliver all messages."""
        for owner in NAMES:
            for name, chain in self.by_name.items():
                self.carry_out(name, chain.payload_stored(number, payload(owner, number)))
        self.deliver()

    def time_out(self) -> None:
        """Let the current view of every honest peer time out, then the wait for reports. Deliver all messages."""
        for event in (HotStuffChain.timeout, HotStuffChain.reports_over):
            for name in self.honest:
                chain = self.by_name[name]
                self.carry_out(name, event(chain, chain.number, chain.view))
            self.deliver()

    def deliver(self) -> None:
        """Deliver messages in the order in which they were sent, until no more are sent."""
        while self.network:
            sender, to, message = self.network.popleft()
            received = from_map(msgpack.unpackb(msgpack.packb(to_map(message))))
            self.carry_out(to, self.by_name[to].receive(sender, received))

    def carry_out(self, name: str, effects: list) -> None:
        for effect in effects:
            if isinstance(effect, ApplyCommit):
                self.applied[name].append(effect.commit.digest)
            if isinstance(effect, Send):
                self.network += [(name, *one) for one in self.sent(name, effect)]

    def sent(self, name: str, effect: Send) -> list:
        if name != self.liar:
            return [(effect.to, effect.message)]
        found = self.lies.messages(self.machine, effect.to, effect.message)
        self.reached += found
        return found

    def of_kind(self, kind: type) -> list:
        """Return (recipient, message) of each message of this kind from the liar."""
        return [(to, message) for to, message in self.reached if isinstance(message, kind)]

    @property
    def honest(self) -> list[str]:
        return [name for name in NAMES if name != self.liar]

    @property
    def agree(self) -> bool:
        """Return whether no two peers have applied different commits of a round."""
        longest = max(self.applied.values(), key=len)
        return all(applied == longest[: len(applied)] for applied in self.applied.values())


def test_without_a_lie_all_peers_apply_the_round_and_nothing_is_counted():
    peers = Peers()
    peers.gather()
    assert all(len(applied) == 1 for applied in peers.applied.values()) and peers.agree
    assert not peers.expressed and len(peers.of_kind(ProposalMessage)) == 6


@pytest.mark.parametrize("now", hotstuff_lies.LIES)
def test_rounds_are_decided_despite_each_lie_and_no_two_peers_apply_different_commits(now):
    peers = Peers(now)
    peers.gather(0)
    peers.time_out()
    peers.gather(1)
    assert peers.agree and min(len(peers.applied[name]) for name in peers.honest) >= 1


@pytest.mark.parametrize("now", [lie for lie in hotstuff_lies.LIES if lie not in ("withhold", "digests")])
def test_a_leader_expresses_each_of_its_lies_and_they_are_counted(now):
    peers = Peers()
    peers.gather(0)
    while peers.machine.hard_state.leader(0) != peers.liar:  # rounds that others lead, without lies
        peers.gather(peers.machine.number)
    peers.now = now
    peers.gather(peers.machine.number)
    assert peers.expressed[now] and set(peers.expressed) == {now}


def test_two_proposals_reach_different_halves_and_both_are_acceptable():
    peers = Peers("split")
    peers.gather()
    proposals = {to: message.proposal for to, message in peers.of_kind(ProposalMessage)}
    digests = Counter(proposal.commit.digest for proposal in proposals.values())
    assert sorted(digests.values()) == [3, 3]
    voted = [peers.by_name[name].voted for name in peers.honest]
    assert {vote.commit.digest for vote in voted} == set(digests), "all of them voted"
    assert not peers.of_kind(Prepared), "neither has a quorum"


def test_a_forged_roster_reaches_f_peers_which_refuse_it_and_the_round_is_decided():
    peers = Peers("rosters")
    peers.gather()
    forged = [to for to, message in peers.of_kind(ProposalMessage) if "999-nobody" in message.proposal.commit.roster]
    assert len(forged) == 2 and all(peers.by_name[name].voted is None for name in forged)
    assert all(len(applied) == 1 for applied in peers.applied.values())
    aliases = [name for name in peers.of_kind(ProposalMessage)[-1][1].proposal.commit.roster if name[0] == "9"]
    assert len(aliases) == ALIASES + 1


def test_a_leader_that_keeps_certificates_stops_the_view_and_its_commit_is_decided_in_the_next_one():
    peers = Peers("hide")
    peers.gather()
    assert len(peers.of_kind(Prepared)) == 2 and not any(peers.applied.values())
    peers.time_out()
    assert all(len(peers.applied[name]) == 1 for name in peers.honest)
    head = peers.by_name[peers.honest[0]].hard_state.head
    assert head.view == 0 and not head.demoted, "the commit is that of view 0, so its leader is not demoted"


def test_a_leader_that_proposes_to_a_minority_is_demoted():
    peers = Peers("minority")
    peers.gather()
    assert len(peers.of_kind(ProposalMessage)) == 2 and not any(peers.applied.values())
    peers.time_out()
    assert {peers.by_name[name].hard_state.head.demoted for name in peers.honest} == {(peers.liar,)}


def test_a_vote_for_a_digest_that_was_never_proposed_contradicts_the_other_vote():
    peers = Peers("digests")
    peers.reached = peers.lies.messages(
        peers.machine, peers.honest[0], Vote(0, b"h" * 32, 0, "prepare", b"x" * 32, -1, b"s" * 64)
    )
    (_, first), (_, second) = peers.of_kind(Vote)
    assert first.digest != second.digest and CAUGHT in contradiction(first.statement, second.statement)
    assert peers.machine.signer.verify(peers.liar, second.statement, second.signature)


def test_locks_are_reported_to_the_leaders_of_far_views_and_no_honest_peer_takes_them():
    peers = Peers("reports")
    peers.gather()
    reports = peers.of_kind(NewView)
    assert {to for to, _ in reports} == set(NAMES) - {peers.liar} and min(one.view for _, one in reports) > FAR
    assert not any(chain.soft_state.reports for chain in peers.by_name.values())


def test_a_leader_of_a_later_view_reports_no_lock():
    peers = Peers("reports")
    lock = object()
    (_, sent), *_ = peers.lies.messages(peers.machine, NAMES[0], NewView(0, b"h" * 32, 1, lock))
    assert sent.lock is None and peers.expressed["reports"] == 1


@pytest.mark.parametrize("now", ["views", "certificates", "histories"])
def test_further_messages_reach_all_peers_with_the_first_message_of_a_kind_in_a_view(now):
    peers = Peers(now)
    message = ViewChange(0, b"h" * 32, 1, b"s" * 64)
    sent = peers.lies.messages(peers.machine, NAMES[0], message)
    more = {to: [one for name, one in sent if name == to and one != message] for to in NAMES}
    assert not more.pop(peers.liar) and len({len(found) for found in more.values()}) == 1 and more[NAMES[1]]
    assert peers.lies.messages(peers.machine, NAMES[1], message) == [(NAMES[1], message)]


def test_views_and_rounds_far_ahead_are_claimed():
    peers = Peers("views")
    message = ViewChange(0, b"h" * 32, 1, b"s" * 64)
    sent = peers.lies.messages(peers.machine, NAMES[0], message)
    assert [one.view for to, one in sent if to == NAMES[1]] == list(VIEWS)
    peers = Peers("histories")
    assert {one.number for to, one in peers.lies.messages(peers.machine, NAMES[0], message)} == {0, FAR}
