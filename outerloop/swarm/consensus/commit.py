"""A commit: the result of a round. It names the payloads that all peers apply and the roster of the next round.

    digest of commit r = sha256 of DOMAIN followed by the commit's map as msgpack (keys in the order of Commit.to_map)
    parent of commit r = digest of commit r - 1, so one digest identifies the whole history

In a run with several fragments, each fragment of a training round has its own commit, with the number round * fragments
+ fragment. In the consensus, a round is what one commit decides.

The chain begins with genesis, the commit before the first round. Genesis has no participants and names the first
roster; its parent is a hash that identifies the session. If all peers resume a run, they begin another chain at the
round where the run resumes.

All peers lead views in turn, but those whose views have failed (the demoted peers) lead last:

    order in round r     the peers that are not demoted, sorted by sha256 of (session, round, peer), which gives another
                         order in each round; then the demoted peers, in the order of their demotion. View v is led by
                         the peer at index v mod n of this order, where n is the number of peers in the roster
    demotion             a commit r that was first proposed in view v shows that views 0 .. v - 1 failed: their leaders
                         are appended to the list of demoted peers. The peer that led view v is removed from the list,
                         as are peers that leave the roster
    limit                only the latest (n - 1) // 2 demotions are kept, so at any time more than half of the roster is
                         not demoted

So a silent leader costs a single timeout, not one timeout in every round that it would lead. Each commit contains the
list of demoted peers, and every acceptor recomputes it (validity.py). So all peers, even a late joiner that holds only
one commit, derive the same leaders from the head of the chain. A view fails only if a majority wants the next view, so
a minority of liars cannot demote a peer. A demoted honest peer loses nothing: it only leads less often.

This is the leader reputation of Carousel (Cohen et al., "Be Aware of Your Leaders", FC 2022, arXiv 2110.00960) with
failed views in place of missing votes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import msgpack

from outerloop.swarm.consensus.quorum import MAJORITY
from outerloop.swarm.validation import (
    MAX_AMOUNT,
    MAX_NUMBER,
    MalformedMessage,
    ascending,
    checked_int,
    digest,
    fields,
    id_of,
    items,
    peer_id,
    peer_ids,
    quote,
    row,
    signature,
    view_number,
)

DOMAIN = b"outerloop/1/commit\n"
GENESIS = -1
MOST_LETTERS = 64
"""Maximum length of a peer's name if its payload names a state (state_roots.py). The payload's file name contains the
peer's name and the state (round_store.py), and is limited to 255 characters.
"""
State = tuple[int, bytes]
"""(number of a commit, sha256 of the manifest that describes the run's state as of that commit)."""


@dataclass(frozen=True)
class Participant:
    """One payload of a round: its owner, sha256 and size. Participants are sorted by these fields.

    `state`: the run state that the payload's sender reports with it (state_roots.py); None if it reports none.
    """

    peer: str
    digest: bytes
    size_bytes: int
    state: State | None = None

    def __lt__(self, other: Participant) -> bool:
        return self._place < other._place

    @property
    def _place(self) -> tuple[str, bytes, int, State]:
        return self.peer, self.digest, self.size_bytes, self.state or (GENESIS - 1, b"")

    def to_list(self) -> list[Any]:
        return [self.peer, self.digest, self.size_bytes, *(self.state or ())]

    @staticmethod
    def of(peer: str, content: bytes | memoryview, *, state: State | None = None) -> Participant:
        """Return the participant that describes the payload `content` of `peer`."""
        return Participant(peer, hashlib.sha256(content).digest(), len(content), state)

    @staticmethod
    def from_list(value: Any) -> Participant:
        """Parse a participant that a peer sent. Raises MalformedMessage if it is malformed."""
        if type(value) is not list or len(value) not in (3, 5):
            raise MalformedMessage(
                "a participant must be [peer, sha256, bytes] or, with a state, [peer, sha256, bytes, commit, sha256];"
                f" got {quote(value)}"
            )
        peer, sha256, size_bytes, *state = value
        if state and type(peer) is str and len(peer) > MOST_LETTERS:
            raise MalformedMessage(
                f"a participant with a state must have a name of at most {MOST_LETTERS} characters; got {quote(peer)}"
            )
        return Participant(
            peer_id(peer, "a participant's peer"),
            digest(sha256, "a participant's payload"),
            checked_int(size_bytes, "a payload's size in bytes", minimum=1, maximum=MAX_AMOUNT),
            _state(*state) if state else None,
        )


def _state(number: Any, sha256: Any) -> State:
    named = digest(sha256, "the manifest of a participant's state")
    return checked_int(number, "the number of a participant's state", maximum=MAX_NUMBER), named


@dataclass(frozen=True)
class Commit:
    """A proposed or decided commit of one round.

    number          the round
    parent          digest of the previous commit
    view            the view in which the commit was first proposed, even if it is proposed again in later views
    participants    the counted payloads, sorted by peer
    roster          the peers that decide the next round, sorted
    asks            (peer, signature of its request to be counted) for each participant that is not in this round's
                    roster, sorted
    demoted         the peers of the next roster that lead last, because their views failed; the latest failure last
    """

    number: int
    parent: bytes
    view: int
    participants: tuple[Participant, ...]
    roster: tuple[str, ...]
    asks: tuple[tuple[str, bytes], ...] = ()
    demoted: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(DOMAIN + msgpack.packb(self.to_map())).digest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def to_map(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "parent": self.parent,
            "view": self.view,
            "participants": [participant.to_list() for participant in self.participants],
            "roster": list(self.roster),
            "asks": [list(ask_of_peer) for ask_of_peer in self.asks],
            "demoted": list(self.demoted),
        }

    @staticmethod
    def from_map(value: Any) -> Commit:
        """Parse a commit that a peer sent. Raises MalformedMessage if it is malformed."""
        found = fields(value, "a commit", ("number", "parent", "view", "participants", "roster", "asks", "demoted"))
        participants = [Participant.from_list(item) for item in items(found["participants"], "participants")]
        ascending([participant.peer for participant in participants], "participants")
        return Commit(
            checked_int(found["number"], "a commit's number", minimum=GENESIS, maximum=MAX_NUMBER),
            digest(found["parent"], "a commit's parent"),
            view_number(found["view"], "a commit's view"),
            tuple(participants),
            peer_ids(found["roster"], "a roster's peers", minimum=1),
            _asks(found["asks"]),
            _demoted(found["demoted"]),
        )


def _asks(value: Any) -> tuple[tuple[str, bytes], ...]:
    rows = [row(item, 2, "an ask must be [peer, signature]") for item in items(value, "asks")]
    asks = tuple((peer_id(peer, "an asker"), signature(signed, "an asker's signature")) for peer, signed in rows)
    ascending([peer for peer, _ in asks], "asks")
    return asks


def _demoted(value: Any) -> tuple[str, ...]:
    return tuple(peer_id(peer, "a demoted peer") for peer in items(value, "the demoted peers"))


def genesis(session: str, roster: Iterable[str], *, first: int = 0) -> Commit:
    """Return the genesis commit of a chain whose first round, `first`, is decided by `roster`.

    Raises MalformedMessage if the roster is invalid.
    """
    parent = hashlib.sha256(DOMAIN + session.encode()).digest()
    names = peer_ids(sorted(set(roster)), "the first roster's peers", minimum=1)
    if len({id_of(name) for name in names}) < len(names):
        raise MalformedMessage(f"the first roster names a peer twice: {', '.join(names)}")
    return Commit(first - 1, parent, 0, (), names)


def majority(roster: tuple[str, ...]) -> int:
    """Return the smallest number of peers that is more than half of the roster. Two majorities always share a peer."""
    return MAJORITY.of(roster)


def max_faulty(roster: tuple[str, ...]) -> int:
    """Return f = (n - 1) // 3 for a roster of n peers, e.g. 1 of 4: rounds continue if at most f peers lie.

    If at most f peers lie, any f + 1 peers include an honest one.
    """
    return (len(roster) - 1) // 3


def minority(roster: tuple[str, ...]) -> int:
    """Return the largest number of peers that is less than half of the roster, e.g. 2 of 5.

    If at most this many peers lie, they cannot choose the next roster.
    """
    return (len(roster) - 1) // 2


def leader(session: str, head: Commit, view: int) -> str:
    """Return the peer that leads view `view` of the round after commit `head`."""
    order = turns(session, head.number + 1, head.roster, head.demoted)
    return order[view % len(order)]


@lru_cache(maxsize=64)
def turns(session: str, number: int, roster: tuple[str, ...], demoted: tuple[str, ...] = ()) -> list[str]:
    """Return the roster of round `number` in the order in which its peers lead."""

    def place(peer: str) -> tuple[int, bytes]:
        failed = demoted.index(peer) if peer in demoted else -1
        return failed, hashlib.sha256(msgpack.packb([session, number, peer])).digest()

    return sorted(roster, key=place)


def next_demoted(session: str, head: Commit, view: int, roster: tuple[str, ...]) -> tuple[str, ...]:
    """Return the `demoted` list of the commit after `head` that is first proposed in `view`.

    `roster`: the next roster, as named by that commit.
    """
    order = turns(session, head.number + 1, head.roster, head.demoted)
    proposer, failed = order[view % len(order)], order[:view]
    listed = [peer for peer in head.demoted if peer not in failed] + failed
    staying = [peer for peer in listed if peer in roster and peer != proposer]
    return tuple(staying[max(0, len(staying) - minority(roster)) :])
