"""The shares of one assembly as one peer has them, and who says that it holds which; data alone, no network.

An owner's own statement counts at once. What another peer says of it is a hint where the share may lie, needed when the
owner can no longer give it: one hint of each peer for each owner, the first one, so that a liar costs at most one
transfer for each share that is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from outerloop.swarm.fields import MAX_AMOUNT, BadMessage, digest, items, whole
from outerloop.swarm.framing import Unreadable
from outerloop.swarm.transport import Request

NAMED = 256
"""Members that one request asks after: ids and answer stay below the limit of a frame."""
Entry = tuple[bytes, int]
"""sha256 and length of a sealed share."""
Key = tuple[str, Entry]
"""Whose share, as somebody describes it."""


class Collection:
    """Peers are named by their ids. `others`: the members besides this peer `own`.

    `shares`: what their owners signed and this peer holds. `gone`: who does not answer any more. `settled`: this peer
    no longer waits for owners; `also_settled`: who says the same of itself. `asking`: who collects here -> when it
    asked last, until it says that it is done. `closed`: this peer fetches nothing any more.
    """

    def __init__(self, number: int, own: str, others: Iterable[str]) -> None:
        self.number, self.own, self.others = number, own, frozenset(others)
        self.entries: dict[str, Entry] = {}
        self.shares: dict[str, bytes] = {}
        self.stated: dict[str, Entry] = {}
        self.holders: dict[Key, list[str]] = {}
        self.gone: set[str] = set()
        self.also_settled: set[str] = set()
        self.asking: dict[str, float] = {}
        self.settled = self.closed = False
        self.fetching: set[Key] = set()
        self._tried: dict[Key, int] = {}
        self._hinted: set[tuple[str, str]] = set()
        self._news = asyncio.Event()

    @property
    def missing(self) -> list[str]:
        """The members whose shares are not here, in order."""
        return sorted(self.others - self.shares.keys())

    @property
    def answered(self) -> bool:
        """Whether every other member has stated its share, or is gone."""
        return self.others <= self.stated.keys() | self.gone

    @property
    def ended(self) -> bool:
        """Whether nothing more can come: all is here, or all who are left have settled and told what they hold."""
        return not self.missing or (self.others <= self.also_settled | self.gone and not self.fetching)

    def add(self, owner: str, entry: Entry, share: bytes) -> None:
        """A share is here that its owner signed; the first one stays."""
        if owner not in self.shares:
            self.entries[owner], self.shares[owner] = entry, share
        self._tell()

    def lose(self, peer: str) -> None:
        """A member does not answer any more."""
        self.gone.add(peer)
        self._tell()

    def settle(self) -> None:
        """Wait for no owner any more."""
        self.settled = True
        self._tell()

    def close(self) -> dict[str, bytes]:
        """Fetch nothing more; return the shares, which are not kept here any longer."""
        self.closed, shares = True, self.shares
        self.shares = {}
        return shares

    def hear(self, peer: str, told: Request) -> None:
        """Take in what a member tells. Raises Unreadable, unchanged, when that is malformed."""
        stated = _entry(told["share"]) if "share" in told else None
        hints = _hints(told.get("held", []))
        self.gone.discard(peer)
        if told.get("settled") is True:
            self.also_settled.add(peer)
        if stated is not None and self.stated.setdefault(peer, stated) == stated:
            self._offer((peer, stated), peer)
        for owner, entry in hints:
            if owner in self.others and (peer, owner) not in self._hinted:
                self._hinted.add((peer, owner))
                self._offer((owner, entry), peer)
        self._tell()

    def to_map(self, asked: Iterable[str]) -> Request:
        """What this peer tells: its own share, whether it has settled, and which of the shares `asked` for it holds."""
        held = [[owner, *self.entries[owner]] for owner in asked if owner in self.entries and owner != self.own]
        return {"share": list(self.entries[self.own]), "settled": self.settled, "held": held}

    def wanted(self) -> list[Key]:
        """What to fetch next: what owners stated themselves, and once settled what others say of the missing ones."""
        return [] if self.closed else [key for key in self.holders if self._is_wanted(key)]

    def fetched(self, key: Key) -> None:
        """An attempt to fetch has ended, well or in vain; another holder is reason for another one."""
        self.fetching.discard(key)
        self._tried[key] = len(self.holders[key])
        self._tell()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on this collection holds."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    def _is_wanted(self, key: Key) -> bool:
        owner, entry = key
        told_by_owner = self.stated.get(owner) == entry
        new = key not in self.fetching and len(self.holders[key]) > self._tried.get(key, 0)
        return new and owner not in self.shares and (self.settled or told_by_owner)

    def _offer(self, key: Key, holder: str) -> None:
        holders = self.holders.setdefault(key, [])
        if holder not in holders:
            holders.append(holder)

    def _tell(self) -> None:
        self._news.set()


def members_in(value: Any) -> list[str]:
    """The peer ids that a request asks after. Raises Unreadable."""
    if not isinstance(value, list) or len(value) > NAMED or not all(isinstance(one, str) for one in value):
        raise Unreadable(f"a request names up to {NAMED} members")
    return value


def _hints(value: Any) -> list[Key]:
    try:
        return [(str(owner), _entry([sha, length])) for owner, sha, length in items(value, "the shares held")]
    except (ValueError, TypeError) as error:
        raise Unreadable(f"shares are told as [peer, sha256, length]: {error}") from error


def _entry(value: Any) -> Entry:
    try:
        sha, length = items(value, "a share")
        return digest(sha, "a share's sha256"), whole(length, "a share's length", most=MAX_AMOUNT)
    except (BadMessage, ValueError) as bad:
        raise Unreadable(str(bad)) from bad
