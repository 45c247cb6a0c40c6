"""The attacks with real processes lie as they say, and their records count right."""

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import attack_liar
import attack_stranger
import attack_strangers
import attack_swarm
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from faults_machine import Machine
from faulty import lie

from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.swarm.ballots import Accept, Accepted, Decided, Here, Link, Propose
from outerloop.swarm.commits import genesis
from outerloop.swarm.identity import ensure_identity
from outerloop.swarm.manifest import Manifest
from outerloop.swarm.notary import Keys
from outerloop.swarm.peer import Peer
from outerloop.swarm.signatures import Signatures
from outerloop.swarm.statements import accept

SITTING = "run/x"


@pytest.fixture
def liar():
    """A liar's Post in round 4 of three peers, as far as lies look at it."""
    signatures = Signatures(Ed25519PrivateKey.generate())
    own = f"002-{signatures.peer_id}"
    head = genesis(SITTING, ["000-a", "001-b", own], first=4)
    memory = SimpleNamespace(peer=own, run=SITTING, roster=head.roster, head=head)
    notary = Keys(signatures, sitting=SITTING, own=own)
    rounds = SimpleNamespace(_machine=SimpleNamespace(memory=memory, number=4, notary=notary))

    class Rounds:
        _machine = rounds._machine

        def receive(self):
            pass

    transport = SimpleNamespace(trust=SimpleNamespace(signatures=signatures))
    return SimpleNamespace(_receive=Rounds().receive, _transport=transport, own=own, head=head, notary=notary)


def signed(liar, signature, number, view, digest):
    return liar.notary.right(liar.own, accept(number, liar.head.digest, view, digest), signature)


def test_who_does_not_lie_says_what_it_would(liar):
    message = Here(4, liar.head.digest, 1, b"s" * 64)
    assert lie.others(liar, "000-a", message, "") == [("000-a", message)]


def test_an_accept_is_said_beside_another_one_that_is_signed_too(liar):
    message = Accept(4, liar.head.digest, 0, b"x" * 32, b"s" * 64)
    said = lie.others(liar, "000-a", message, "equivocate")
    assert {to for to, _ in said} == {"000-a", "001-b"} and ("000-a", message) in said
    (other,) = {one for _, one in said} - {message}
    assert other.digest == hashlib.sha256(b"x" * 32).digest() and (other.number, other.view) == (4, 0)
    assert signed(liar, other.signature, 4, 0, other.digest)


def test_a_proposal_names_the_liar_many_times(liar):
    (sent,) = lie.others(
        liar,
        "000-a",
        Propose(Accepted(replace(liar.head, number=4, parent=liar.head.digest), (Link(0, (), b"s" * 64),))),
        "rosters",
    )
    roster = sent[1].accepted.commit.roster
    assert list(roster) == sorted(roster) and "999-nobody" in roster
    assert sum(name.endswith(liar.own.partition("-")[2]) for name in roster) == 1 + lie.ALIASES
    assert signed(liar, sent[1].accepted.links[-1].signature, 4, 0, sent[1].accepted.commit.digest)


def test_wishes_and_certificates_go_to_everybody(liar):
    message = Here(4, liar.head.digest, 1, b"s" * 64)
    views = lie.others(liar, "000-a", message, "views")
    assert [one.view for to, one in views if to == "001-b"] == list(lie.VIEWS)
    far = [one for to, one in lie.others(liar, "000-a", message, "histories") if to == "001-b"]
    assert [one.number for one in far] == [4 + lie.FAR]
    (proof,) = [one for to, one in lie.others(liar, "000-a", message, "certificates") if to == "001-b"]
    assert isinstance(proof, Decided) and {name for name, _ in proof.accepts} == set(liar.head.roster)
    assert proof.commit.parent == liar.head.digest
    assert all(signed(liar, signature, 4, 0, proof.commit.digest) for _, signature in proof.accepts)


def test_lies_reach_the_classes_that_all_words_pass(monkeypatch):
    from outerloop.swarm.history import History
    from outerloop.swarm.post import Post

    for owner, name in ((Post, "send"), (History, "__init__"), (Manifest, "of")):
        monkeypatch.setattr(owner, name, owner.__dict__[name])
    truth = Manifest.of(b"state", number=1, head=bytes(32))
    lie.install()
    monkeypatch.setattr(lie, "now", lambda: "")
    assert Manifest.of(b"state", number=1, head=bytes(32)) == truth
    monkeypatch.setattr(lie, "now", lambda: "states")
    assert Manifest.of(b"state", number=1, head=bytes(32)).chunks != truth.chunks
    transport = SimpleNamespace()
    history = History(transport, run="r", allowed=bool, since=lambda after: ("told", after))
    assert history._since(3) == ("told", 3)
    monkeypatch.setattr(lie, "now", lambda: "histories")
    assert history._since(3) == ()


def test_a_stranger_attacks_all_that_a_peer_of_a_listed_run_serves(tmp_path, monkeypatch):
    served, serve = set(), Peer.serve

    async def seen(self, protocol, **how):
        served.add(protocol)
        await serve(self, protocol, **how)

    monkeypatch.setattr(Peer, "serve", seen)
    identity = ensure_identity(tmp_path / "identity")
    allow = [Signatures.of(identity).peer_id]
    SwarmGather(run="default", peers=1, identity_path=str(identity), allow=allow).abort()
    assert set(attack_stranger.PROTOCOLS) == served


def test_the_pace_after_is_that_of_rounds_over_time():
    assert attack_liar.pace([1.0, 1.0], [2.0, 2.0, 2.0]) == 0.5
    assert attack_liar.pace([], [1.0]) is None and attack_liar.pace([1.0], []) is None


def test_ratios_are_of_medians_over_runs_and_memory_is_the_most():
    def record(kind, median, mean, grew):
        return {"kind": kind, "round_s_median": median, "round_s_mean": mean, "rss_growth_mib": grew}

    records = [
        record("calm", 1.0, 2.0, {"worker": 3}),
        record("calm", 3.0, 2.0, {"worker": 4}),
        record("attacked", 2.5, 3.0, {"worker": 50, "p2pd": 70}),
    ]
    assert attack_strangers.ratios(records) == {
        "attacked round_s_median": 1.25,
        "attacked round_s_mean": 1.5,
        "calm rss_growth_mib": 4,
        "attacked rss_growth_mib": 70,
    }


def test_the_list_has_everybody_and_each_machine_its_key_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    swarm = attack_swarm.Listed(tmp_path / "runs", workers=2, options=["seed=3"], newcomers=1)
    machines = [*swarm.machines, *swarm.newcomers]
    assert len(set(swarm.ids)) == 3 and [attack_swarm.id_of(machine) for machine in machines] == swarm.ids
    for machine in machines:
        assert f"exchange.allow=[{','.join(swarm.ids)}]" in machine.options and "seed=3" in machine.options
    swarm.first_seen.update({0: 10.0, 1: 12.0, 2: 15.0})
    assert swarm.seconds() == [2.0, 3.0] and swarm.seconds(11.0) == [3.0]
    assert attack_swarm.round_times([2.0, 3.0]) == {
        "round_s_median": 2.5, "round_s_mean": 2.5, "round_s_longest": 3.0,
    }  # fmt: skip


def test_refusals_are_counted_by_kind(tmp_path):
    machine = Machine(0, tmp_path / "m0", [])
    log = tmp_path / "m0/workers/0/log.txt"
    log.parent.mkdir(parents=True)
    log.write_text(
        "refused (ballots) x: y\nsomething\nrefused (outsiders) z: y, and 3 before that\nrefused (ballots) x\n"
    )
    machine.rows = [{"event": "round", "failed": "", "refused_messages": 7.0}]
    assert attack_swarm.refused(machine) == {"messages": 7.0, "lines": {"ballots": 2, "outsiders": 1}}
