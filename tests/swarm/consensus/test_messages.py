"""Messages, commits and memory as bytes: nothing is lost, and nothing else than a message is taken for one."""

import random
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from outerloop.swarm.consensus.commit import Commit, Participant, genesis
from outerloop.swarm.consensus.messages import (
    MAX_MESSAGE_BYTES,
    Accept,
    JoinRequest,
    Message,
    Promise,
    Propose,
    Resigned,
    ViewChange,
    ViewWishes,
    from_map,
    to_map,
)
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.resignation import Resignation
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import Accepted, ChainLink, CommitCertificate, Pledge, ViewWish
from outerloop.swarm.validation import MAX_AMOUNT, MAX_NUMBER, MAX_PEERS, MAX_VIEW, MalformedMessage
from tests.support.swarm.consensus_world import World, payload
from tests.support.swarm.toy_signatures import decided_by, pledge_of, proposal

HEAD = bytes(range(32))
COMMIT = Commit(3, HEAD, 1, (payload("a", 3), payload("b", 3)), ("a", "b", "c"))
RESIGNATION = Resignation("b", 2, HEAD, bytes(64))
MESSAGES: list[Message] = [
    ViewChange(3, HEAD, 0, bytes(64)),
    Promise(3, HEAD, 2, None, bytes(64)),
    Promise(3, HEAD, 2, proposal(COMMIT, by="ab"), bytes(64)),
    Propose(proposal(COMMIT, view=2, by="ac")),
    Accept(3, HEAD, 2, COMMIT.digest, bytes(64)),
    decided_by("ac", COMMIT, view=2),
    JoinRequest(3, HEAD, bytes(64)),
    ViewWishes(3, HEAD, (ViewWish("a", 2, bytes(64)), ViewWish("b", 3, bytes(64)))),
    decided_by("ac", Commit(3, HEAD, 0, COMMIT.participants, ("a", "b"), (("b", bytes(64)),))),
    Resigned(3, HEAD, (RESIGNATION, RESIGNATION._replace(number=3))),
    replace(decided_by("ac", COMMIT, view=2), resignations=(RESIGNATION,)),
]


def packed(message: Message) -> bytes:
    return msgpack.packb(to_map(message))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_equal(message: Message) -> None:
    assert from_map(msgpack.unpackb(packed(message))) == message


def test_the_digest_of_a_commit_is_fixed_by_its_content() -> None:
    assert genesis("r", "bca").digest == genesis("r", "abc").digest != genesis("s", "abc").digest
    golden = "afd4067e1b3b236005f2ceb1117bf56470ab456308052eb1e6d6c2a22f4032f4"
    assert genesis("r", "abc").digest.hex() == golden
    changed = [
        Commit(4, HEAD, 1, COMMIT.participants, COMMIT.roster),
        Commit(3, bytes(32), 1, COMMIT.participants, COMMIT.roster),
        Commit(3, HEAD, 0, COMMIT.participants, COMMIT.roster),
        Commit(3, HEAD, 1, COMMIT.participants[:1], COMMIT.roster),
        Commit(3, HEAD, 1, COMMIT.participants, ("a", "b")),
        Commit(3, HEAD, 1, COMMIT.participants, COMMIT.roster, (("b", bytes(64)),)),
        Commit(3, HEAD, 1, COMMIT.participants, COMMIT.roster, (("b", bytes(63) + b"1"),)),
        Commit(3, HEAD, 1, COMMIT.participants, COMMIT.roster, (), ("b",)),
        Commit(3, HEAD, 1, COMMIT.participants, COMMIT.roster, (), ("c", "b")),
    ]
    assert len({one.digest for one in (COMMIT, *changed)}) == 10


def test_the_largest_message_fits() -> None:
    peers = tuple(sorted(f"{index:04d}".rjust(128, "x") for index in range(MAX_PEERS)))
    participants = tuple(Participant(peer, HEAD, MAX_AMOUNT) for peer in peers)
    asks = tuple((peer, bytes(64)) for peer in peers)
    commit = Commit(MAX_NUMBER, HEAD, MAX_VIEW - 7, participants, peers, asks)
    told, majority = pledge_of("a", commit, 1, (MAX_VIEW, commit.digest)), peers[: MAX_PEERS // 2 + 1]
    pledges = tuple(Pledge(peer, told.accepted, told.signature) for peer in majority)
    links = tuple(ChainLink(MAX_VIEW - 7 + index, pledges, bytes(64)) for index in range(8))
    accepts = tuple((peer, bytes(64)) for peer in majority)
    for message in (
        CommitCertificate(commit, MAX_VIEW, accepts, links),
        Promise(MAX_NUMBER, HEAD, MAX_VIEW, Accepted(commit, links[:-1]), bytes(64)),
        Propose(Accepted(commit, links)),
        ViewWishes(MAX_NUMBER, HEAD, tuple(ViewWish(peer, MAX_VIEW, bytes(64)) for peer in peers)),
    ):
        assert len(packed(message)) <= MAX_MESSAGE_BYTES
        assert from_map(msgpack.unpackb(packed(message))) == message


def bent(message: Message, *path: Any, value: Any) -> dict[str, Any]:
    """A message's map with one value replaced."""
    checked_int = msgpack.unpackb(packed(message))
    inner = checked_int
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return checked_int


PROPOSE, PROMISE, DECIDED = MESSAGES[3], MESSAGES[2], MESSAGES[5]
IN = "accepted", "commit"
MALFORMED: list[tuple[Any, str]] = [
    (None, "a message must be a map"),
    ([], "a message must be a map"),
    ({}, "a message must be a map"),
    ({"kind": "shout"}, "whose kind is one of"),
    ({"kind": ["here"]}, "whose kind is one of"),
    ({"kind": "here"}, "here must be a map with the keys head, kind, number, signature, view"),
    (bent(MESSAGES[0], "extra", value=1), "here must be a map with the keys"),
    (bent(MESSAGES[0], "number", value=True), "a round's number"),
    (bent(MESSAGES[0], "number", value=-1), "a round's number"),
    (bent(MESSAGES[0], "number", value=MAX_NUMBER + 1), "a round's number"),
    (bent(MESSAGES[0], "number", value=3.0), "a round's number"),
    (bent(MESSAGES[0], "view", value=MAX_VIEW + 1), "a view"),
    (bent(MESSAGES[1], "view", value=0), "a view"),
    (bent(MESSAGES[0], "head", value=HEAD[1:]), "a head must be a sha256"),
    (bent(MESSAGES[0], "head", value="x" * 32), "a head must be a sha256"),
    (bent(MESSAGES[4], "digest", value=b""), "an accepted commit must be a sha256"),
    (
        bent(MESSAGES[9], "resignations", value=[["b", 2, HEAD]]),
        r"a resignation must be \[peer, round, head, signature\]",
    ),
    (
        bent(MESSAGES[9], "resignations", 0, 1, value=3),
        "resignations must be sorted by peer and round, with at most one",
    ),
    (bent(MESSAGES[9], "resignations", 0, 1, value=-1), "the round of a resignation"),
    (bent(MESSAGES[9], "resignations", 0, 3, value=b""), "the signature of a resignation"),
    (bent(MESSAGES[10], "decided", "resignations", value=7), "resignations must be a list"),
    (bent(PROMISE, "accepted", value=7), "an accepted commit must be a map"),
    (bent(PROMISE, "view", value=1), "in an earlier view of the same round"),
    (bent(PROMISE, "number", value=4), "in an earlier view of the same round"),
    (bent(PROMISE, "head", value=bytes(32)), "in an earlier view of the same round"),
    (bent(PROPOSE, "accepted", "links", value=[]), "links must be a list of 1"),
    (bent(PROPOSE, "accepted", "links", 0, 0, value=0), "in ascending order of views, starting with view 1"),
    (bent(PROPOSE, "accepted", "links", 1, 0, value=1), "in ascending order of views, starting with view 1"),
    (bent(PROPOSE, "accepted", "links", 0, value=[1, []]), "a link must be"),
    (bent(PROPOSE, "accepted", "links", 0, 2, value=b""), "a leader's signature must have 64 bytes"),
    (bent(PROPOSE, "accepted", "links", 1, 1, 0, value=["a", None]), "a pledge must be"),
    (bent(PROPOSE, "accepted", "links", 1, 1, 0, 0, value="c"), "pledges must be unique and in ascending order"),
    (bent(PROPOSE, "accepted", "links", 1, 1, 0, 1, value=[1]), "a pledge must report an accept as"),
    (bent(PROPOSE, "accepted", "links", 1, 1, 0, 1, 1, value=b""), "a pledged commit must be a sha256"),
    (bent(PROPOSE, *IN, value=[]), "a commit must be a map"),
    (bent(PROPOSE, *IN, "number", value=-1), "a decided round's number"),
    (bent(DECIDED, "decided", "commit", "number", value=-1), "a decided round's number"),
    (bent(PROPOSE, *IN, "roster", value=[]), "a roster's peers must be a list of 1 to 1024"),
    (bent(PROPOSE, *IN, "roster", value=["b", "a"]), "in ascending order"),
    (bent(PROPOSE, *IN, "roster", value=["a", "a"]), "must be unique"),
    (bent(PROPOSE, *IN, "roster", value=["a b"]), "must be a peer id"),
    (bent(PROPOSE, *IN, "roster", value=["a" * 129]), "must be a peer id"),
    (bent(PROPOSE, *IN, "roster", value=["a"] * 1025), "list of 1025"),
    (bent(PROPOSE, *IN, "participants", value=[["a", HEAD]]), "a participant must be"),
    (bent(PROPOSE, *IN, "participants", value=[["a", HEAD, 1], ["a", HEAD, 2]]), "must be unique"),
    (bent(PROPOSE, *IN, "participants", 0, 1, value=b"short"), "a participant's payload must be a sha256"),
    (bent(PROPOSE, *IN, "participants", 0, 2, value=-1), "size in bytes"),
    (bent(PROPOSE, *IN, "participants", 0, 2, value=0), "size in bytes"),
    (bent(PROPOSE, *IN, "participants", 0, 2, value=1 << 63), "size in bytes"),
    (bent(DECIDED, "decided", value=7), "a decided commit must be a map"),
    (bent(DECIDED, "decided", "view", value=0), "a decided view"),
    (bent(DECIDED, "decided", "view", value=3), "links of a decided commit must end with its view 3"),
    (bent(DECIDED, "decided", "links", value=[]), "links of a decided commit must end with its view 2"),
    (bent(PROPOSE, *IN, "asks", value=["b"]), "an ask must be"),
    (bent(PROPOSE, *IN, "asks", value=[["b", b""]]), "an asker's signature must have 64 bytes"),
    (bent(PROPOSE, *IN, "asks", value=2 * [["b", bytes(64)]]), "asks must be unique"),
    (bent(MESSAGES[6], "signature", value=b""), "the signature of ask must have 64 bytes"),
    (bent(MESSAGES[7], "wishes", value=[["a", 1]]), "a wish must be"),
    (bent(MESSAGES[7], "wishes", 1, 0, value="a"), "wishes must be unique"),
    (bent(DECIDED, "decided", "accepts", value=[["c", bytes(64)], ["a", bytes(64)]]), "in ascending order"),
    (bent(DECIDED, "decided", "accepts", value=[["a", bytes(63)]]), "an accept's signature must have 64 bytes"),
    (bent(DECIDED, "decided", "accepts", value=["a"]), "an accept must be"),
    (bent(DECIDED, "decided", "accepts", value="abc"), "accepts must be a list"),
    (bent(MESSAGES[4], "signature", value=b""), "the signature of accept must have 64 bytes"),
]


@pytest.mark.parametrize(("value", "reason"), MALFORMED)
def test_a_malformed_message_is_refused_and_its_field_named(value: Any, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason) as error:
        from_map(value)
    assert len(str(error.value)) < 250


def test_no_bytes_whatever_do_anything_but_be_refused() -> None:
    rng = random.Random(0)
    world = World("abc", gather_policy=GatherPolicy(min_peers=1, min_fraction=1))
    understood = 0
    for _ in range(5000):
        content = bytearray(packed(rng.choice(MESSAGES)))
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        try:
            message = from_map(msgpack.unpackb(bytes(content)))
        except ValueError:  # MalformedMessage is one, and all that msgpack raises are
            continue
        understood += 1
        world["a"].receive(rng.choice(["a", "b", "z"]), message)
    assert understood > 100 and world["a"].number == 0


def memories() -> list[HardState]:
    first = HardState.first(session="r", peer="a", roster="abc")
    commit = Commit(0, first.head.digest, 0, (payload("a", 0),), ("a", "b"))
    later = first.learned(decided_by("ab", commit))
    accepted = proposal(Commit(1, commit.digest, 1, (payload("b", 1),), ("a",)), view=2, by="a")
    return [
        first,
        later,
        HardState("r", "a", later.log, 5, accepted),
        HardState.joining(session="r", peer="z", head=later.log[-1]),
    ]


@pytest.mark.parametrize("hard_state", memories())
def test_a_memory_comes_back_equal(hard_state: HardState) -> None:
    assert HardState.from_bytes(hard_state.to_bytes(), session="r", peer=hard_state.peer) == hard_state


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 4}, "the hard state's version must be a whole number from 7 to 7"),
        ({"run": "s"}, "this hard state belongs to peer a in session s, not to a in r"),
        ({"peer": "b"}, "this hard state belongs to peer b in session r, not to a in r"),
        ({"promised": -1}, "the promised view"),
        ({"log": []}, "the log must be a list of 1"),
        ({"log": 2 * [decided_by("a", COMMIT, view=1).to_map()]}, "3 does not follow the previous commit in the log"),
        ({"log": [COMMIT.to_map()]}, "a decided commit must be a map"),
        ({"accepted": {}}, "an accepted commit must be a map"),
    ],
)
def test_a_damaged_or_foreign_memory_is_refused(change: dict[str, Any], reason: str) -> None:
    content = {**msgpack.unpackb(memories()[2].to_bytes()), **change}
    with pytest.raises(MalformedMessage, match=reason):
        HardState.from_bytes(msgpack.packb(content), session="r", peer="a")
    with pytest.raises(MalformedMessage, match="unreadable"):
        HardState.from_bytes(memories()[2].to_bytes()[:-3], session="r", peer="a")
