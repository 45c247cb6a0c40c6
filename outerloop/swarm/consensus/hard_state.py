"""What a peer of the agreement remembers through a crash: the last commits, what it promised, what it accepted.

It lies beside the peer's identity, and the two share one fate: a peer that lost its memory might vote twice, so it
comes back with a new identity. Payloads that an accepted commit names must outlive a crash as well (see agreement).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgpack

from outerloop.swarm.consensus.commit import Commit, genesis
from outerloop.swarm.consensus.messages import Accepted, CommitCertificate
from outerloop.swarm.validation import (
    MAX_NUMBER,
    MAX_VIEW,
    MalformedMessage,
    digest,
    fields,
    items,
    peer_id,
    quote,
    unpacked,
    whole,
)

VERSION = 4
ROUNDS_KEPT = 8
"""Commits that a peer can be behind and still be brought up by replay."""


@dataclass(frozen=True)
class HardState:
    """Immutable: an event makes a new one. `log`: the last commits, the last of them is the head.

    `promised`: the view at hand; nothing of an earlier one is accepted any more. `accepted`: the last that was.
    Both are about the round after the head. `left`: number and digest of commits of chains that this peer has left
    (forks.py) and may still come to; it may have voted after them, and what it voted is forgotten.
    """

    run: str
    peer: str
    log: tuple[CommitCertificate, ...]
    promised: int = 0
    accepted: Accepted | None = None
    left: frozenset[tuple[int, bytes]] = frozenset()

    @staticmethod
    def first(*, run: str, peer: str, roster: Iterable[str], number: int = 0) -> HardState:
        """Of a peer that is there from the beginning, when round `number` is the first."""
        return HardState(run, peer, (CommitCertificate(genesis(run, roster, first=number), 0, ()),))

    @staticmethod
    def joining(*, run: str, peer: str, head: CommitCertificate) -> HardState:
        """Of a newcomer that downloaded the state as of `head`. Raises ValueError when it has voted there already."""
        if peer in head.commit.roster:
            raise ValueError(
                f"{peer} is in the roster but brings no memory: remove its identity file, join as a new peer"
            )
        return HardState(run, peer, (head,))

    @property
    def head(self) -> Commit:
        return self.log[-1].commit

    @property
    def number(self) -> int:
        """Of the round that is to be decided."""
        return self.head.number + 1

    @property
    def roster(self) -> tuple[str, ...]:
        """The peers that decide it."""
        return self.head.roster

    @property
    def votes(self) -> bool:
        """Whether this peer has a vote in the round: it is in the roster, and has not forgotten an earlier vote."""
        return self.peer in self.roster and (self.head.number, self.head.digest) not in self.left

    def leader(self, view: int) -> str:
        return leader(self.run, self.number, view, self.roster)

    def learned(self, decided: CommitCertificate) -> HardState:
        """The next commit is known: on to the round after it."""
        assert decided.commit.number == self.number and decided.commit.parent == self.head.digest
        return self._after((*self.log, decided)[-ROUNDS_KEPT:])

    def back_to(self, base: CommitCertificate) -> HardState:
        """Return the memory as of `base`, a commit of this chain, without votes: the chain after it is left."""
        kept = tuple(one for one in self.log if one.commit.number < base.commit.number)
        after = {(one.commit.number, one.commit.digest) for one in self.log if one.commit.number > base.commit.number}
        return HardState(self.run, self.peer, (*kept, base), left=self.left | after)

    def skipped_to(self, decided: CommitCertificate) -> HardState:
        """Return the memory of a peer that downloaded the state as of a later commit."""
        assert decided.commit.number >= self.number
        return self._after((decided,))

    def reaching_back(self, log: Iterable[CommitCertificate]) -> HardState:
        """Return the same with earlier commits of the same chain, as far as ROUNDS_KEPT."""
        return replace(self, log=(*log, *self.log)[-ROUNDS_KEPT:])

    def _after(self, log: tuple[CommitCertificate, ...]) -> HardState:
        """Return the memory with another head; earlier commits than that one do not become the head any more."""
        left = frozenset(one for one in self.left if one[0] >= log[-1].commit.number)
        return HardState(self.run, self.peer, log, left=left)

    def to_bytes(self) -> bytes:
        return msgpack.packb(
            {
                "version": VERSION,
                "run": self.run,
                "peer": self.peer,
                "log": [one.to_map() for one in self.log],
                "promised": self.promised,
                "accepted": self.accepted.to_map() if self.accepted else None,
                "left": sorted(self.left),
            }
        )

    @staticmethod
    def from_bytes(content: bytes, *, run: str, peer: str) -> HardState:
        """Raises MalformedMessage when it is damaged, of another version, or another run's or peer's."""
        value = unpacked(content, "the memory of the agreement")
        found = fields(value, "the memory", ("version", "run", "peer", "log", "promised", "accepted", "left"))
        whole(found["version"], "the memory's version", least=VERSION, most=VERSION)
        if (found["run"], peer_id(found["peer"], "the memory's peer")) != (run, peer):
            raise MalformedMessage(
                f"this memory is of peer {found['peer']} in run {found['run']}, not of {peer} in {run}"
            )
        accepted = None if found["accepted"] is None else Accepted.from_map(found["accepted"])
        promised = whole(found["promised"], "the promised view", most=MAX_VIEW)
        return HardState(run, peer, _log(found["log"]), promised, accepted, _left(found["left"]))


def _log(value: Any) -> tuple[CommitCertificate, ...]:
    log: list[CommitCertificate] = []
    for one in items(value, "the log", least=1):
        decided = CommitCertificate.from_map(one)
        if log and decided.commit.parent != log[-1].commit.digest:
            raise MalformedMessage(f"the log breaks before commit {decided.commit.number}")
        log.append(decided)
    return tuple(log)


def _left(value: Any) -> frozenset[tuple[int, bytes]]:
    rows = items(value, "the commits that were left")
    if any(type(row) is not list or len(row) != 2 for row in rows):
        raise MalformedMessage(f"a commit that was left is [number, sha256]; got {quote(value)}")
    return frozenset(
        (whole(number, "the number of a commit that was left", most=MAX_NUMBER), digest(sha256, "its sha256"))
        for number, sha256 in rows
    )


def leader(run: str, number: int, view: int, roster: tuple[str, ...]) -> str:
    """All in turn, so that a dead one leads one view and not the next as well."""
    return turns(run, number, roster)[view % len(roster)]


@lru_cache(maxsize=64)
def turns(run: str, number: int, roster: tuple[str, ...]) -> list[str]:
    """The peers of the roster in the order of the sha256 of (run, round, peer): another one in each round."""
    return sorted(roster, key=lambda peer: hashlib.sha256(msgpack.packb([run, number, peer])).digest())
