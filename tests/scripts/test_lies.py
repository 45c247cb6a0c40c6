"""The lies of attack_liar.py and simulate_liars.py are what they claim to be, and are counted when they are sent."""

import hashlib
from collections import Counter, deque
from dataclasses import replace
from types import SimpleNamespace

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from faulty import hotstuff_lies, lie, misbehave
from faulty.forging import ALIASES, FAR, VIEWS
from faulty.lie import Liar, lie_about_log, lies, machine_of

from outerloop.swarm.access.signatures import KeySigner, Signatures
from outerloop.swarm.consensus.commit import genesis
from outerloop.swarm.consensus.effects import ApplyCommit, Send
from outerloop.swarm.consensus.hotstuff.chain import HotStuffChain
from outerloop.swarm.consensus.hotstuff.messages import NewView, Prepared, ProposalMessage, Vote
from outerloop.swarm.consensus.messages import Accept, CommitCertificate, Propose, ViewChange, from_map, to_map
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.statements import accept
from outerloop.swarm.consensus.votes import Accepted, ChainLink
from outerloop.swarm.gather.ballot_rpc import BallotRpc
from outerloop.swarm.gather.log_rpc import LogRpc
from outerloop.swarm.state_transfer.manifest import Manifest
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
        first = HardState.first(run=SESSION, peer=NAMES[0], roster=NAMES)
        self.liar = first.leader(0)
        self.by_name = {name: self.chain(name) for name in NAMES}
        self.machine = self.by_name[self.liar]
        self.lies = Liar(lambda: self.now, lambda lie: self.expressed.update([lie]))
        self.applied = {name: [] for name in NAMES}
        self.network: deque = deque()

    def chain(self, name: str) -> HotStuffChain:
        policy = GatherPolicy(min_peers=2, min_fraction=0.0)
        hard_state = HardState.first(run=SESSION, peer=name, roster=NAMES)
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
            for name, chain in self.by_name.items():
                if name != self.liar:
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
    honest = [applied for name, applied in peers.applied.items() if name != peers.liar]
    assert peers.agree and min(map(len, honest)) >= 1


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
    voted = [chain.voted for name, chain in peers.by_name.items() if name != peers.liar]
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
    honest = [name for name in NAMES if name != peers.liar]
    assert all(len(peers.applied[name]) == 1 for name in honest)
    head = peers.by_name[honest[0]].hard_state.head
    assert head.view == 0 and not head.demoted, "the commit is that of view 0, so its leader is not demoted"


def test_a_leader_that_proposes_to_a_minority_is_demoted():
    peers = Peers("minority")
    peers.gather()
    assert len(peers.of_kind(ProposalMessage)) == 2 and not any(peers.applied.values())
    peers.time_out()
    honest = [name for name in NAMES if name != peers.liar]
    assert {peers.by_name[name].hard_state.head.demoted for name in honest} == {(peers.liar,)}


def test_a_vote_for_a_digest_that_was_never_proposed_contradicts_the_other_vote():
    from outerloop.swarm.accountability.evidence import contradiction

    peers = Peers("digests")
    leader = next(name for name in NAMES if name != peers.liar)
    peers.reached = peers.lies.messages(
        peers.machine, leader, Vote(0, b"h" * 32, 0, "prepare", b"x" * 32, -1, b"s" * 64)
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


# Paxos


@pytest.fixture
def paxos():
    """A liar in round 4 of three peers, as far as its lies look at it."""
    signatures = Signatures(Ed25519PrivateKey.generate())
    own = f"002-{signatures.peer_id}"
    head = genesis(SESSION, ["000-a", "001-b", own], first=4)
    hard_state = SimpleNamespace(peer=own, run=SESSION, roster=head.roster, head=head)
    signer = KeySigner(signatures, session=SESSION, own=own)
    machine = SimpleNamespace(hard_state=hard_state, number=4, view=0, signer=signer, byzantine=False)
    return SimpleNamespace(machine=machine, own=own, head=head, signer=signer)


def said(paxos, message, now, to="000-a"):
    return Liar(lambda: now, lambda lie: None).messages(paxos.machine, to, message)


def signed(paxos, signature, number, view, digest):
    return paxos.signer.verify(paxos.own, accept(number, paxos.head.digest, view, digest), signature)


def test_a_liar_that_is_not_lying_sends_honest_messages(paxos):
    message = ViewChange(4, paxos.head.digest, 1, b"s" * 64)
    assert said(paxos, message, "") == [("000-a", message)]


def test_an_accept_is_said_with_another_one_that_is_signed_too(paxos):
    message = Accept(4, paxos.head.digest, 0, b"x" * 32, b"s" * 64)
    sent = said(paxos, message, "equivocate")
    assert {to for to, _ in sent} == {"000-a", "001-b"} and ("000-a", message) in sent
    (other,) = {one for _, one in sent} - {message}
    assert other.digest == hashlib.sha256(b"x" * 32).digest() and (other.number, other.view) == (4, 0)
    assert signed(paxos, other.signature, 4, 0, other.digest)


def test_a_proposal_names_the_liar_many_times(paxos):
    commit = replace(paxos.head, number=4, parent=paxos.head.digest)
    (sent,) = said(paxos, Propose(Accepted(commit, (ChainLink(0, (), b"s" * 64),))), "rosters")
    roster = sent[1].accepted.commit.roster
    assert list(roster) == sorted(roster) and "999-nobody" in roster
    assert sum(name.endswith(paxos.own.partition("-")[2]) for name in roster) == 1 + ALIASES
    assert signed(paxos, sent[1].accepted.links[-1].signature, 4, 0, sent[1].accepted.commit.digest)


def test_wishes_and_certificates_reach_all_peers(paxos):
    message = ViewChange(4, paxos.head.digest, 1, b"s" * 64)
    assert [one.view for to, one in said(paxos, message, "views") if to == "001-b"] == list(VIEWS)
    assert [one.number for to, one in said(paxos, message, "histories") if to == "001-b"] == [4 + FAR]
    (proof,) = [one for to, one in said(paxos, message, "certificates") if to == "001-b"]
    assert isinstance(proof, CommitCertificate) and {name for name, _ in proof.accepts} == set(paxos.head.roster)
    assert proof.commit.parent == paxos.head.digest
    assert all(signed(paxos, signature, 4, 0, proof.commit.digest) for _, signature in proof.accepts)


# the registry and the process


@pytest.mark.parametrize("trust", ["members", "nobody"])
def test_every_lie_of_the_registry_has_a_name_and_a_line_about_what_it_does(trust):
    found = lies(trust)
    assert len({one.name for one in found}) == len(found) and all(one.trust == trust for one in found)
    assert all(one.what.endswith(".") and len(one.what) > 20 for one in found)
    assert {one.name for one in found} == {*lie.FORGES[trust], "states"}


def test_lies_reach_the_classes_that_all_messages_pass(monkeypatch):
    for owner, name in ((BallotRpc, "send"), (LogRpc, "__init__"), (Manifest, "of")):
        monkeypatch.setattr(owner, name, owner.__dict__[name])
    counted, now = [], [""]
    monkeypatch.setattr(misbehave, "now", lambda: now[0])
    monkeypatch.setattr(misbehave, "note", counted.append)
    truth = Manifest.of(b"state", number=1, head=bytes(32))
    lie.install()
    assert Manifest.of(b"state", number=1, head=bytes(32)) == truth and not counted
    now[0] = "states"
    assert Manifest.of(b"state", number=1, head=bytes(32)).chunks != truth.chunks
    transport = SimpleNamespace()
    history = LogRpc(transport, run="r", allowed=bool, since=lambda after: ("told", after))
    assert history._since(3) == ("told", 3)  # noqa: SLF001
    for now[0] in ("histories", "hide"):
        assert history._since(3) == ()  # noqa: SLF001
    assert counted == ["states", "histories", "hide"]


def test_an_empty_log_is_no_lie():
    counted = []
    rpc = SimpleNamespace(_since=lambda after: ())
    lie_about_log(rpc, Liar(lambda: "histories", counted.append))
    assert rpc._since(3) == () and not counted  # noqa: SLF001


def test_before_the_rounds_begin_a_liar_has_no_state_and_sends_honest_messages():
    class Context:
        begun = False

        def receive(self) -> None:
            pass

    ballots = SimpleNamespace(_receive=Context().receive)
    message = object()
    assert machine_of(ballots) is None
    assert Liar(lambda: "silence", lambda lie: None).messages(None, "000-a", message) == [("000-a", message)]
