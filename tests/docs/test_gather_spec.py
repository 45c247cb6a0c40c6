"""The specification of gather suffices to check a decision: a verifier written from it, without this package.

`verify` follows docs/reference/protocols/gather.md and transport.md, on certificates as they are sent. The chain of the
package decides rounds in view 0, in view 1 after a silent leader, and in view 1 with a commit of view 0.
"""

import hashlib
from collections import Counter

import msgpack
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from outerloop.swarm.access.signatures import KeySigner, Signatures
from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.effects import Send
from outerloop.swarm.consensus.messages import Accept, CommitCertificate, to_map
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.state import HardState

SESSION = "run/0f"
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in range(1, 5)]
NAMES = sorted(f"00{i}-{Signatures(key).peer_id}" for i, key in enumerate(KEYS))


# from the specification


def is_signed(by: str, signature: bytes, context: str, *fields: object) -> bool:
    """Return whether the peer of this name has signed this."""
    number = 0
    for letter in by.split("-")[1]:
        number = 58 * number + ALPHABET.index(letter)
    raw = number.to_bytes(38, "big")
    assert raw[:6] == bytes.fromhex("002408011220")
    message = b"outerloop/1/signature\n" + msgpack.packb([context, SESSION, by, *fields])
    try:
        Ed25519PublicKey.from_public_bytes(raw[6:]).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def digest_of(commit: dict) -> bytes:
    return hashlib.sha256(b"outerloop/1/commit\n" + msgpack.packb(commit)).digest()


def leader_of(head: dict, view: int) -> str:
    def turn(name: str) -> bytes:
        return hashlib.sha256(msgpack.packb([SESSION, head["number"] + 1, name])).digest()

    first = sorted((name for name in head["roster"] if name not in head["demoted"]), key=turn)
    order = [*first, *head["demoted"]]
    return order[view % len(order)]


def demoted_after(head: dict, commit: dict) -> list[str]:
    failed = [leader_of(head, view) for view in range(commit["view"])]
    listed = [*(name for name in head["demoted"] if name not in failed), *failed]
    staying = [n for n in listed if n in commit["roster"] and n != leader_of(head, commit["view"])]
    return staying[max(0, len(staying) - (len(commit["roster"]) - 1) // 2) :]


def bound(head: dict, pledges: list) -> tuple[int, set[bytes]]:
    """Return the latest view that these promises report, and the commits reported there most often."""
    majority = len(head["roster"]) // 2 + 1
    latest = max((accepted[0] for _, accepted, _ in pledges if accepted), default=-1)
    if len({accepted[1] for _, accepted, _ in pledges if accepted and accepted[0] == latest}) > 1:
        pledges = [pledge for pledge in pledges if pledge[0] != leader_of(head, latest)]
    assert len(pledges) >= majority
    reported = Counter(accepted[1] for _, accepted, _ in pledges if accepted and accepted[0] == latest)
    return latest, {commit for commit, count in reported.items() if count == max(reported.values())}


def verify(head: dict, certificate: dict) -> None:
    """Check that this certificate decides the commit after `head`."""
    commit, view = certificate["commit"], certificate["view"]
    number, parent, digest = commit["number"], digest_of(head), digest_of(commit)
    majority = len(head["roster"]) // 2 + 1
    assert (number, commit["parent"]) == (head["number"] + 1, parent)
    accepts = [(name, signature) for name, signature in certificate["accepts"] if name in head["roster"]]
    assert sum(is_signed(name, s, "accept", number, parent, view, digest) for name, s in accepts) >= majority
    assert commit["demoted"] == demoted_after(head, commit)
    views = [link[0] for link in certificate["links"]]
    assert views == sorted(set(views)) and (views or [0])[-1] == view and (views or [0])[0] == commit["view"]
    before = None
    for view, pledges, signature in certificate["links"]:
        assert is_signed(leader_of(head, view), signature, "accept", number, parent, view, digest)
        if view:
            for name, accepted, signed in pledges:
                assert name in head["roster"]
                assert is_signed(name, signed, "promise", number, parent, view, *(accepted or (-1, b"")))
            latest, commits = bound(head, pledges)
            assert (latest, digest in commits) == (before, True) if before is not None else not commits
        before = view


# with the package


class World:
    """Four peers that vote. `lost`: returns whether a message from a peer in a round is lost."""

    def __init__(self, lost=lambda sender, message: False) -> None:
        self.lost, self.decided = lost, {}
        signers = {
            name: KeySigner(Signatures(key), session=SESSION, own=name) for name, key in zip(NAMES, KEYS, strict=True)
        }
        self.genesis = HardState.first(session=SESSION, peer=NAMES[0], roster=NAMES).head.to_map()
        self.chains = {
            name: PaxosChain(
                HardState.first(session=SESSION, peer=name, roster=NAMES),
                signer=signer,
                gather_policy=GatherPolicy(min_peers=2, min_fraction=0.0),
                absent_rounds=2,
            )
            for name, signer in signers.items()
        }

    def carry_out(self, sender: str, effects: list) -> None:
        for effect in effects:
            if isinstance(effect, Send) and not self.lost(sender, effect.message):
                if isinstance(effect.message, CommitCertificate):
                    sent = msgpack.unpackb(msgpack.packb(to_map(effect.message)))["decided"]
                    self.decided[effect.message.commit.number] = sent
                self.carry_out(effect.to, self.chains[effect.to].receive(sender, effect.message))

    def play(self, number: int, *, timeouts: int) -> None:
        """Store everybody's payload of a round everywhere, then let all time out this many times."""
        for owner in NAMES:
            participant = Participant.of(owner, f"{owner} {number}".encode())
            for name, chain in self.chains.items():
                self.carry_out(name, chain.payload_stored(number, participant))
        for _ in range(timeouts):
            for name, chain in self.chains.items():
                self.carry_out(name, chain.timeout(number, chain.view))


FIRST_LEADER = leader_of({"number": -1, "roster": NAMES, "demoted": []}, 0)


def first_leader_silent(sender: str, message: object) -> bool:
    """No message of the leader of round 0, view 0 arrives."""
    return sender == FIRST_LEADER


def accepts_lost(sender: str, message: object) -> bool:
    """All accept in view 0, and the leader hears of none."""
    return isinstance(message, Accept) and message.view == 0


@pytest.mark.parametrize(
    ("lost", "views"),
    [(lambda sender, message: False, (0, 0, [])), (first_leader_silent, (1, 1, [1])), (accepts_lost, (0, 1, [0, 1]))],
    ids=["view 0", "silent leader", "proposed again"],
)
def test_certificates_of_the_package_are_those_of_the_page(lost, views):
    world = World(lost)
    head = world.genesis
    for number in range(2):
        world.play(number, timeouts=int(bool(views[1])))
        certificate = world.decided[number]
        verify(head, certificate)
        if number == 0:
            links = [link[0] for link in certificate["links"]]
            assert (certificate["commit"]["view"], certificate["view"], links) == views
        head = certificate["commit"]


@pytest.mark.parametrize("part", ["accept", "link", "pledge", "demoted", "parent"])
def test_a_changed_certificate_is_found(part):
    world = World(accepts_lost)
    world.play(0, timeouts=1)
    certificate = world.decided[0]
    if part == "accept":
        certificate["accepts"] = certificate["accepts"][:2]
    elif part == "link":
        certificate["links"][0][2] = bytes(64)
    elif part == "pledge":
        certificate["links"][1][1][0][1] = None
    else:
        certificate["commit"][part] = {"demoted": [NAMES[0]], "parent": bytes(32)}[part]
    with pytest.raises(AssertionError):
        verify(world.genesis, certificate)
