"""State of one peer in a final gather: which shares it holds, and which peers claim to hold the other shares.

A share counts if its owner signed it, regardless of which peer reported it. A claim without the owner's signature is
rejected before anything is fetched, and the rejection names the peer that made the claim. If an owner signed two
different shares, each peer that learns of both excludes the owner, and sends both shares to every peer that asks.
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
"""Maximum number of members that one request may ask about, so that the request and its answer each fit in one
frame."""


class ShareCollection:
    """The shares that one peer holds or knows of in one final gather. Peers are identified by their peer ids.

    own           this peer's share; `blob` is its content
    others        the members other than this peer
    share_error   returns a one-line reason why a share is invalid, or "" if it is valid
    reject        called with a peer and the reason why its claim is rejected

    `unreachable`: members that no longer answer. `settled`: set when this peer no longer waits for owners to state
    their shares. `asked_s`: member that is still fetching from this peer -> time of its last request.
    """

    def __init__(
        self,
        own: SignedShare,
        blob: bytes,
        others: Iterable[str],
        *,
        share_error: Callable[[SignedShare], str],
        reject: Callable[[str, str], None],
    ) -> None:
        self.own, self.others = own, frozenset(others)
        self.unreachable: set[str] = set()
        self.asked_s: dict[str, float] = {}
        self.settled = asyncio.Event()
        self._share_error, self._reject = share_error, reject
        self._stated = {own.owner: own}
        self._contradicting: dict[str, SignedShare] = {}
        self._holders: defaultdict[str, list[str]] = defaultdict(list)
        self._blobs = {own.owner: blob}
        self._held = {own.owner}
        self._have_stated: set[str] = set()  # members that have stated their own share, valid or not
        self._false_claims: set[tuple[str, str]] = set()  # (peer that made the claim, owner of the share)
        self._compared: set[str] = set()  # members that reported all their shares after both peers had settled
        self._done: set[str] = set()  # members that need nothing more from this peer
        self._fetching: set[str] = set()
        self._tried: set[str] = set()
        self._windows = 0
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def missing(self) -> list[str]:
        """Return the sorted ids of the members whose shares may still count but are not held by this peer."""
        return sorted(self.others - self._held - self._contradicting.keys())

    @property
    def answered(self) -> bool:
        """Return whether every other member has stated its share or is unreachable."""
        return self.others <= self._have_stated | self.unreachable

    @property
    def idle(self) -> bool:
        """Return whether this peer need not wait for any running fetch.

        A fetch is not worth waiting for if all holders of its share are unreachable, or if the share does not count.
        """
        counting = self._fetching - self._contradicting.keys()
        return all(self.unreachable.issuperset(self._holders[owner]) for owner in counting)

    @property
    def ended(self) -> bool:
        """Return whether no more shares can arrive: every reachable member has settled and reported its shares."""
        return self.idle and self.others <= self._compared | self.unreachable | self._contradicting.keys()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on this collection holds."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def settle(self) -> None:
        """Stop waiting for owners to state their shares (sets `settled`)."""
        self.settled.set()
        self._changed.set()

    def close(self) -> dict[str, bytes]:
        """Stop fetching. Return owner -> blob, and remove the blobs from this collection."""
        self._closed, blobs = True, self._blobs
        self._blobs = {}
        return blobs

    def mark_unreachable(self, peer: str) -> None:
        """Record that a member no longer answers."""
        self.unreachable.add(peer)
        self._changed.set()

    def asked_by(self, peer: str, now_s: float) -> None:
        """Record that a peer is still fetching, unless its {done} message arrived before this request."""
        if peer not in self._done:
            self.asked_s[peer] = now_s

    def left_by(self, peer: str) -> None:
        """Record that a peer needs nothing more from this peer."""
        self._done.add(peer)
        self.asked_s.pop(peer, None)

    def members_to_ask(self, peer: str) -> list[str]:
        """Return up to NAMED members to ask `peer` about: those whose shares are missing.

        Once this peer has settled, it asks about all members until the two peers have compared their shares, so that
        both exclude the same members. If there are more than NAMED members, successive calls return different ones.
        """
        all_of_them = self.settled.is_set() and peer not in self._compared
        names = sorted(self.others) if all_of_them else self.missing
        self._windows += 1
        start = self._windows * NAMED % max(1, len(names)) if len(names) > NAMED else 0
        return [*names[start:], *names[:start]][:NAMED]

    def to_map(self, asked: Iterable[str]) -> Request:
        """Return this peer's report to another member.

        The report contains this peer's share, whether this peer has settled, all contradicting shares, and, for each
        member in `asked`, the member's share if this peer holds it.
        """
        second = self._contradicting
        contradicting = [share for owner in second for share in (self._stated[owner], second[owner])]
        held = [self._stated[owner] for owner in asked if owner in self._held and owner not in second]
        shares = [share.to_list() for share in (contradicting + held)[:NAMED] if share.owner != self.own.owner]
        return {"share": self.own.to_list(), "settled": self.settled.is_set(), "held": shares}

    def apply_report(self, peer: str, report: Request, *, compared: bool = False) -> None:
        """Apply a member's report. `compared`: whether this peer had settled when it sent its request.

        Raises Unreadable, without changing anything, if the report is malformed.
        """
        own = SignedShare.from_list(report["share"]) if "share" in report else None
        held = [SignedShare.from_list(share) for share in _listed(report.get("held", []))]
        if own is not None and own.owner != peer:
            raise Unreadable("a member may state only its own share")
        self.unreachable.discard(peer)
        if own is not None:
            self._have_stated.add(peer)
        for share in held if own is None else [own, *held]:
            self._learn(share, peer)
        if compared and report.get("settled") is True:
            self._compared.add(peer)
        self._changed.set()

    def start(self) -> list[tuple[SignedShare, list[str]]]:
        """Return the shares to fetch now, each with its list of sources, which may grow. Mark them as being fetched.

        Until this peer has settled, it fetches a share only if the owner itself has stated it to this peer. After that,
        it fetches a share from any peer that claims to hold it. A failed fetch is retried when a peer claims again to
        hold the share.
        """
        out = self._held | self._contradicting.keys() | self._fetching | self._tried
        open_to_all = self.settled.is_set()
        wanted = [
            owner for owner in self._stated if owner not in out and (open_to_all or owner in self._holders[owner])
        ]
        wanted = [] if self._closed else wanted
        self._fetching |= set(wanted)
        return [(self._stated[owner], self._holders[owner]) for owner in wanted]

    def fetched(self, owner: str, blob: bytes | None) -> None:
        """Record the end of a fetch. `blob`: the content, or None if the fetch failed."""
        self._fetching.discard(owner)
        self._tried.add(owner)
        if blob is not None and not self._closed and owner not in self._contradicting:
            self._held.add(owner)
            self._blobs[owner] = blob
        self._changed.set()

    def _learn(self, share: SignedShare, holder: str) -> None:
        owner = share.owner
        if owner not in self.others or owner in self._contradicting or (holder, owner) in self._false_claims:
            return
        known = self._stated.get(owner)
        if known is None or known.differs(share):
            if why := self._share_error(share):
                self._false_claims.add((holder, owner))
                self._reject(holder, why)
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
        self._reject(second.owner, "it signed two different shares for one final gather: neither counts")


def members_in(value: Any) -> list[str]:
    """Return the peer ids that a request asks about. Raises Unreadable if `value` is malformed."""
    if not isinstance(value, list) or len(value) > NAMED or not all(isinstance(peer, str) for peer in value):
        raise Unreadable(f"a request must list at most {NAMED} members")
    return value


def _listed(value: Any) -> list[Any]:
    try:
        return items(value, "the shares held")
    except ValueError as error:
        raise Unreadable(str(error)) from error
