"""State of one assembly at one peer: shares held, and which peers claim to hold the others. No I/O.

A share counts when its owner signed it, whoever tells of it; a claim without that signature is refused, by the name of
who made it, before anything is fetched. An owner that signed two different shares is left out by everyone who hears of
both, and both are told to whoever asks.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from outerloop.swarm.gossip.signed_shares import SignedShare
from outerloop.swarm.p2p.framing import Unreadable
from outerloop.swarm.p2p.transport import Request
from outerloop.swarm.validation import items

NAMED = 256
"""Members that one request asks after: ids and answer stay below the limit of a frame."""


class ShareCollection:
    """Peers are named by their ids.

    own      this peer's share, and `blob`, what it is of
    others   the members besides this peer
    doubt    why a share cannot be its owner's, in one line; empty when it can
    refuse   is told of a peer, and why what it claims is not taken

    `gone`: who does not answer any more. `settled`: this peer no longer waits for owners. `asked_s`: peers that are
    still fetching from this one -> time of their last request.
    """

    def __init__(
        self,
        own: SignedShare,
        blob: bytes,
        others: Iterable[str],
        *,
        doubt: Callable[[SignedShare], str],
        refuse: Callable[[str, str], None],
    ) -> None:
        self.own, self.others = own, frozenset(others)
        self.gone: set[str] = set()
        self.asked_s: dict[str, float] = {}
        self.settled = asyncio.Event()
        self._doubt, self._refuse = doubt, refuse
        self._stated = {own.owner: own}
        self._contradicting: dict[str, SignedShare] = {}
        self._holders: defaultdict[str, list[str]] = defaultdict(list)
        self._blobs = {own.owner: blob}
        self._held = {own.owner}
        self._came: set[str] = set()  # who has stated a share of its own, right or wrong
        self._false: set[tuple[str, str]] = set()  # who made a false claim about whom
        self._compared: set[str] = set()  # who has settled, and told all that it holds since this peer has
        self._left: set[str] = set()  # who needs nothing more of this peer
        self._fetching: set[str] = set()
        self._tried: set[str] = set()
        self._windows = 0
        self._closed = False
        self._news = asyncio.Event()

    @property
    def missing(self) -> list[str]:
        """The members whose shares are not here and may still count, in order."""
        return sorted(self.others - self._held - self._contradicting.keys())

    @property
    def answered(self) -> bool:
        """Whether every other member has stated its share, or is gone."""
        return self.others <= self._came | self.gone

    @property
    def idle(self) -> bool:
        """Whether nothing is being fetched that may still come and count."""
        counting = self._fetching - self._contradicting.keys()
        return all(self.gone.issuperset(self._holders[owner]) for owner in counting)

    @property
    def ended(self) -> bool:
        """Whether nothing more can come: all who are left have settled and told what they hold."""
        return self.idle and self.others <= self._compared | self.gone | self._contradicting.keys()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on this collection holds."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    def settle(self) -> None:
        """Wait for no owner any more."""
        self.settled.set()
        self._news.set()

    def close(self) -> dict[str, bytes]:
        """Fetch nothing more; return the blobs by owner, which are not kept here any longer."""
        self._closed, blobs = True, self._blobs
        self._blobs = {}
        return blobs

    def lose(self, peer: str) -> None:
        """A member does not answer any more."""
        self.gone.add(peer)
        self._news.set()

    def asked_by(self, peer: str, now_s: float) -> None:
        """A peer fetches from this one, unless it has said that it is done: requests may come in another order."""
        if peer not in self._left:
            self.asked_s[peer] = now_s

    def left_by(self, peer: str) -> None:
        """A peer is done."""
        self._left.add(peer)
        self.asked_s.pop(peer, None)

    def to_ask(self, peer: str) -> list[str]:
        """The members to ask a peer about, up to NAMED, others each time: those that are missing.

        Once this peer has settled, all, to compare: whoever is left out here, or there, is left out by both.
        """
        all_of_them = self.settled.is_set() and peer not in self._compared
        names = sorted(self.others) if all_of_them else self.missing
        self._windows += 1
        start = self._windows * NAMED % max(1, len(names)) if len(names) > NAMED else 0
        return [*names[start:], *names[:start]][:NAMED]

    def to_map(self, asked: Iterable[str]) -> Request:
        """What this peer tells: its share, whether it has settled, who contradicts itself, what it holds of `asked`."""
        lies = [share for owner, second in self._contradicting.items() for share in (self._stated[owner], second)]
        held = [self._stated[owner] for owner in asked if owner in self._held and owner not in self._contradicting]
        told = [share.to_list() for share in (lies + held)[:NAMED] if share.owner != self.own.owner]
        return {"share": self.own.to_list(), "settled": self.settled.is_set(), "held": told}

    def hear(self, peer: str, told: Request, *, compared: bool = False) -> None:
        """Take in what a member tells; `compared`: asked about all. Raises Unreadable, unchanged, when malformed."""
        own = SignedShare.from_list(told["share"]) if "share" in told else None
        held = [SignedShare.from_list(one) for one in _listed(told.get("held", []))]
        if own is not None and own.owner != peer:
            raise Unreadable("a member states a share of its own")
        self.gone.discard(peer)
        if own is not None:
            self._came.add(peer)
        for share in held if own is None else [own, *held]:
            self._learn(share, peer)
        if compared and told.get("settled") is True:
            self._compared.add(peer)
        self._news.set()

    def start(self) -> list[tuple[SignedShare, list[str]]]:
        """Return the shares to fetch now, and who holds each, a list that may grow; they are being fetched from now on.

        From owners that have told of them here; once this peer has settled, from whoever holds them. What was tried in
        vain is tried again when somebody claims once more to hold it.
        """
        out = self._held | self._contradicting.keys() | self._fetching | self._tried
        open_to_all = self.settled.is_set()
        wanted = [x for x in self._stated if x not in out and (open_to_all or x in self._holders[x])]
        wanted = [] if self._closed else wanted
        self._fetching |= set(wanted)
        return [(self._stated[owner], self._holders[owner]) for owner in wanted]

    def fetched(self, owner: str, blob: bytes | None) -> None:
        """An attempt to fetch has ended, with a blob or in vain."""
        self._fetching.discard(owner)
        self._tried.add(owner)
        if blob is not None and not self._closed and owner not in self._contradicting:
            self._held.add(owner)
            self._blobs[owner] = blob
        self._news.set()

    def _learn(self, share: SignedShare, holder: str) -> None:
        owner = share.owner
        if owner not in self.others or owner in self._contradicting or (holder, owner) in self._false:
            return
        known = self._stated.get(owner)
        if known is None or known.differs(share):
            if why := self._doubt(share):
                self._false.add((holder, owner))
                self._refuse(holder, why)
                return
            if known is not None:
                self._leave_out(share)
                return
            self._stated[owner] = share
        if holder not in self._holders[owner]:
            self._holders[owner].insert(0 if holder == owner else len(self._holders[owner]), holder)
        self._tried.discard(owner)

    def _leave_out(self, second: SignedShare) -> None:
        self._contradicting[second.owner] = second
        self._blobs.pop(second.owner, None)
        self._held.discard(second.owner)
        self._refuse(second.owner, "it signed two different shares of one assembly: neither counts")


def members_in(value: Any) -> list[str]:
    """The peer ids that a request asks after. Raises Unreadable."""
    if not isinstance(value, list) or len(value) > NAMED or not all(isinstance(one, str) for one in value):
        raise Unreadable(f"a request names up to {NAMED} members")
    return value


def _listed(value: Any) -> list[Any]:
    try:
        return items(value, "the shares held")
    except ValueError as error:
        raise Unreadable(str(error)) from error
