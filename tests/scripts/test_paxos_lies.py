"""The lies of a peer against Paxos are what they claim to be."""

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from faulty.common_lies import VIEWS
from faulty.forging import ALIASES, FAR
from faulty.lie import Liar

from outerloop.swarm.access.signatures import KeySigner, Signatures
from outerloop.swarm.consensus.commit import genesis
from outerloop.swarm.consensus.messages import Accept, CommitCertificate, Propose, ViewChange
from outerloop.swarm.consensus.statements import accept
from outerloop.swarm.consensus.votes import Accepted, ChainLink
from tests.support.swarm.toy_signatures import SESSION


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
