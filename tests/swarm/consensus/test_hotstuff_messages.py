"""Messages and hard state of HotStuff-2 on the wire and on disk: what comes back, and what is refused."""

import copy
import random
from typing import Any

import msgpack
import pytest

from outerloop.swarm.consensus.commit import Commit, genesis
from outerloop.swarm.consensus.hotstuff.messages import COMMIT, PREPARE, NewView, Prepared, ProposalMessage, Vote
from outerloop.swarm.consensus.hotstuff.votes import UNJUSTIFIED, Lock, PrepareCertificate, Proposal
from outerloop.swarm.consensus.messages import Message, from_map, to_map
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import CommitCertificate, ViewWish
from outerloop.swarm.validation import MAX_VIEW, MalformedMessage
from tests.support.swarm.consensus_world import payload
from tests.support.swarm.hotstuff_world import HotStuffWorld

HEAD = genesis("r", "abc")
FRESH = Commit(0, HEAD.digest, 0, (payload("a", 0),), ("a", "b"))
CERTIFICATE = PrepareCertificate(FRESH.digest, 1, 0, (("a", bytes(64)), ("b", bytes(64))))
MESSAGES: list[Message] = [
    NewView(0, HEAD.digest, 1, None),
    NewView(0, HEAD.digest, 2, Lock(FRESH, CERTIFICATE)),
    ProposalMessage(Proposal(FRESH, 0, None, bytes(64)), ()),
    ProposalMessage(Proposal(FRESH, 2, CERTIFICATE, bytes(64)), (ViewWish("a", 2, bytes(64)),)),
    Vote(0, HEAD.digest, 2, PREPARE, FRESH.digest, 1, bytes(64)),
    Vote(0, HEAD.digest, 2, COMMIT, FRESH.digest, UNJUSTIFIED, bytes(64)),
    Prepared(0, HEAD.digest, CERTIFICATE),
    CommitCertificate(FRESH, 1, (("a", bytes(64)),), byzantine=True),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_comes_back_as_it_was_sent(message: Message) -> None:
    assert from_map(msgpack.unpackb(msgpack.packb(to_map(message)))) == message


def bent(message: Message, *path: str | int, value: Any) -> Any:
    """A message as it is on the wire, with another value in one place."""
    found = msgpack.unpackb(msgpack.packb(to_map(message)))
    inner = found = copy.deepcopy(found)
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return found


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (bent(MESSAGES[0], "view", value=0), "a view must be"),
        (bent(MESSAGES[0], "head", value=b""), "a head must be"),
        (bent(MESSAGES[1], "view", value=1), "a lock of an earlier view"),
        (bent(MESSAGES[1], "number", value=1), "a lock of an earlier view"),
        (bent(MESSAGES[1], "lock", "certificate", "digest", value=bytes(32)), "not about commit 0"),
        (bent(MESSAGES[1], "lock", "certificate", "votes", value=[["b", bytes(64)], ["a", bytes(64)]]), "ascending"),
        (bent(MESSAGES[1], "lock", "certificate", "justified", value=1), "the view of a justification"),
        (bent(MESSAGES[2], "proposal", "view", value=1), "must be of a commit that was first proposed in view 1"),
        (bent(MESSAGES[2], "proposal", "signature", value=b""), "a proposal's vote must have 64 bytes"),
        (bent(MESSAGES[2], "proposal", "commit", "number", value=-1), "a proposed round's number"),
        (bent(MESSAGES[3], "proposal", "view", value=1), "the view of a justification"),
        (bent(MESSAGES[3], "wishes", value=7), "wishes must be a list"),
        (bent(MESSAGES[4], "phase", value="abort"), "a vote's phase must be prepare or commit"),
        (bent(MESSAGES[4], "justified", value=2), "the view of a justification"),
        (bent(MESSAGES[4], "view", value=MAX_VIEW + 1), "a view must be"),
        (bent(MESSAGES[5], "justified", value=0), "the view of a justification"),
        (bent(MESSAGES[6], "certificate", value=[]), "a prepare certificate must be a map"),
        (bent(MESSAGES[7], "decided", "commits", value=[["a", b""]]), "a vote's signature must have 64 bytes"),
        (bent(MESSAGES[7], "decided", "view", value=-1), "a decided view"),
    ],
)
def test_a_malformed_message_is_refused_and_its_field_named(value: Any, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        from_map(value)


def test_no_bytes_whatever_do_anything_but_be_refused() -> None:
    rng = random.Random(0)
    world = HotStuffWorld("abc", liars="", gather_policy=GatherPolicy(min_peers=1, min_fraction=1))
    understood = 0
    for _ in range(2000):
        content = bytearray(msgpack.packb(to_map(rng.choice(MESSAGES))))
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        try:
            message = from_map(msgpack.unpackb(bytes(content)))
        except ValueError:  # MalformedMessage is one, and all that msgpack raises are
            continue
        understood += 1
        world["a"].receive(rng.choice(["a", "b", "z"]), message)
    assert understood > 50 and world["a"].number == 0


@pytest.mark.parametrize(
    ("accepted", "lock"),
    [
        (None, None),
        (Proposal(FRESH, 0, None, bytes(64)), None),
        (Proposal(FRESH, 2, CERTIFICATE, bytes(64)), Lock(FRESH, CERTIFICATE)),
    ],
)
def test_the_votes_and_the_lock_survive_on_disk(accepted: Proposal | None, lock: Lock | None) -> None:
    first = HardState.first(session="r", peer="a", roster="abc")
    hard_state = HardState("r", "a", first.log, 3, accepted, lock)
    assert HardState.from_bytes(hard_state.to_bytes(), session="r", peer="a") == hard_state
