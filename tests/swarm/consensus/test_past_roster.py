"""What a returning peer believes when its last roster is gone, and that it casts no vote a second time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from outerloop.swarm.consensus.commit import Commit, Participant, genesis
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.proof import newest_commit_past
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.consensus.votes import CommitCertificate
from tests.support.swarm.toy_signatures import SESSION, ToySigner, accept_of, decided_by, proposal

OLD, NEW = "abcde", "fgh"
SIGNER = ToySigner("e")


def after(
    head: Commit, count: int, *, roster: str, signed: Iterable[str] = "", view: int = 0
) -> list[CommitCertificate]:
    """So many commits that follow `head` and name `roster`, signed by `signed`, or else by all of it."""
    made: list[CommitCertificate] = []
    for _ in range(count):
        head = Commit(head.number + 1, head.digest, view, (), tuple(roster))
        made.append(decided_by(signed or roster, head, view, roster=roster))
    return made


OURS = after(genesis(SESSION, OLD), 10, roster=OLD)
HEAD = OURS[-1].commit
RUN = after(HEAD, 1, roster=NEW, signed=OLD)
RUN += after(RUN[0].commit, 19, roster=NEW)
LOG = RUN[-ROUNDS_KEPT:]
FORK = after(OURS[-2].commit, 20, roster=NEW)
UNSIGNED = [CommitCertificate(one.commit, 0, (("f", accept_of("f", one.commit)),)) for one in LOG]


@pytest.mark.parametrize(
    ("logs", "newest"),
    [
        ({"f": LOG, "g": LOG, "h": LOG}, 29),
        ({"f": LOG, "g": LOG[:-2], "h": LOG[:-3]}, 29),
        ({"f": LOG, "g": LOG, "a": OURS}, 29),
        ({"f": LOG, "g": LOG, "a": OURS, "b": OURS}, None),
        ({"f": LOG, "g": LOG, "a": OURS[:-1], "b": OURS[:-1], "c": OURS[:3]}, 29),
        ({"f": LOG, "g": LOG, "x": FORK[-ROUNDS_KEPT:]}, 29),
        ({"f": LOG, "g": LOG, "x": FORK[-ROUNDS_KEPT:], "y": FORK[-ROUNDS_KEPT:]}, None),
        ({"f": FORK[:ROUNDS_KEPT], "g": FORK[:ROUNDS_KEPT]}, None),
        ({"f": RUN[:3], "g": RUN[:3]}, 12),
        ({"f": UNSIGNED, "g": UNSIGNED}, None),
        ({"f": LOG[-1:]}, 29),
        ({"a": OURS, "b": OURS[:-1]}, None),
        ({"a": [], "f": []}, None),
        ({}, None),
    ],
    ids=[
        "all that answer", "ahead of one another", "one that is level", "as many that are level",
        "those that are behind do not count", "one on another chain", "as many on another chain",
        "a chain that left this one", "logs that reach back", "commits without the signatures of their roster",
        "a log of one commit", "nothing later", "empty logs", "no answer",
    ],
)  # fmt: skip
def test_more_than_half_of_those_that_are_not_behind_must_hold_a_later_commit_that_their_rosters_signed(
    logs: dict[str, list[CommitCertificate]], newest: int | None
) -> None:
    found = newest_commit_past(HEAD, logs, SIGNER)
    assert (None if found is None else found.number) == newest


def voter() -> PaxosChain:
    """The peer e, which has accepted a proposal in the round after HEAD."""
    voted = proposal(Commit(HEAD.number + 1, HEAD.digest, 0, (), tuple(OLD)))
    hard_state = HardState(SESSION, "e", tuple(OURS[-ROUNDS_KEPT:]), accepted=voted)
    policy = GatherPolicy(min_peers=1, min_fraction=0.0)
    chain = PaxosChain(hard_state, signer=SIGNER, gather_policy=policy, absent_rounds=2)
    assert chain.hard_state.has_voted
    return chain


def true_commits(count: int) -> list[CommitCertificate]:
    """The commits after HEAD in which all peers of its roster took part."""
    made, head = list[CommitCertificate](), HEAD
    for _ in range(count):
        head = Commit(head.number + 1, head.digest, 0, tuple(Participant.of(peer, b"p") for peer in OLD), tuple(OLD))
        made.append(decided_by("abc", head))
    return made


def forged(view: int) -> list[CommitCertificate]:
    """A chain that leaves the true one after HEAD, in the first round without the accepts of its roster."""
    first = Commit(HEAD.number + 1, HEAD.digest, view, (), tuple("xe"))
    return [decided_by("x", first, view, roster="xe"), *after(first, 6, roster="xe", view=view)]


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("view", [0, 1])
def test_a_peer_that_was_led_to_a_forged_chain_never_votes_again_in_the_round_in_which_it_had_voted(
    view: int, count: int
) -> None:
    """It forgets what it had accepted after HEAD, so HEAD must not become its head again."""
    chain, lie, true = voter(), forged(view), true_commits(count)
    chain.install_snapshot(lie[-1])
    assert chain.number == lie[-1].commit.number + 1 and not chain.hard_state.has_voted
    for log in (lie, OURS[-ROUNDS_KEPT:], [*OURS[-3:], *lie], [*OURS[-3:], *true], [*OURS[-1:], *true], true):
        chain.compare_log("000-a", log)
        assert chain.number > HEAD.number + 1
    for decided in (*OURS, *true):
        chain.receive("000-a", decided)
        assert chain.number > HEAD.number + 1
    switched = true[0] in chain.hard_state.log
    assert switched == (view == 1), "the chain whose first commit was proposed in the lower view, or by digest"


def test_an_earlier_commit_is_never_installed() -> None:
    chain = voter()
    chain.install_snapshot(OURS[-1])
    chain.install_snapshot(OURS[-2])
    assert chain.hard_state.head == HEAD and chain.hard_state.has_voted
