"""The final gather at the end of a run: each member fetches the signed shares of all other members.

    {number, share, settled, held: [share, ...], missing: [peer id, ...]} ->
                                  <- {share, settled, held: [share, ...]}, or {} if the receiver has not started yet
    {number, done: true} ->       <- {}

    collect    Wait, for at most `wait_s`, until every other member has stated its share or stopped answering. Members
               finish at different times, and some never finish.
    fetch      Fetch each stated share from its owner, for at most `wait_s`.
    settled    A share may be missing here although another member fetched it before its owner died. Ask the other
               members for missing shares until all reachable members have settled, for at most `wait_s`. If no share
               is missing, only compare the lists of held shares, for at most COMPARE_S.
    done       Notify the other members that this peer needs nothing more from them.

The result contains the fetched shares that are signed by their owners (signed_shares.py). A malicious peer can submit a
bad share in its own name, but not in another peer's name. If it signs different shares for different members, every
member that learns of both shares before it finishes excludes that peer (share_collection.py).

The wire protocol calls the final gather an assembly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from outerloop.swarm.gossip.share_collection import ShareCollection, members_in
from outerloop.swarm.gossip.signed_shares import SignedShare, is_signed, signed
from outerloop.swarm.membership.formation import Formation
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import PeerUnreachable, Request, RpcService, Transport, Unreachable, persist
from outerloop.swarm.timeouts import PROBE_S, STALL_S, VIEW_S, limit
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.content_store import ContentStore
from outerloop.swarm.transfer.signed_payload import offload
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.validation import MAX_NUMBER, MalformedMessage, checked_int
from outerloop.types import Contribution, Round

logger = logging.getLogger(__name__)
SLOWEST_PROBE_S = 5.0
"""Longest pause between two polls of a member. With 1,000 members, this amounts to 200 polls per second."""
COMPARE_S = 2 * SLOWEST_PROBE_S
"""Maximum time that a peer that holds all shares waits for the other members to report which shares they hold."""
WAITS = 3
"""Number of phases of up to `wait_s` each: stating shares, fetching them, and asking others for missing shares."""


class FinalGather(RpcService):
    """Runs one peer's side of a run's final gathers, which are numbered in ascending order.

    wait_s           how long each phase waits for the other members (see the module docstring)
    max_blob_bytes   maximum size of a share from another member
    """

    service = "assembly"

    def __init__(
        self,
        transport: Transport,
        membership: Formation,
        store: ContentStore,
        bulk: Bulk,
        *,
        run: str,
        wait_s: float,
        max_blob_bytes: int,
    ) -> None:
        super().__init__(transport, run=run, allowed=membership.__contains__)
        self._members = membership
        self._store = store
        self._bulk = bulk
        self._wait_s = wait_s
        self._max_bytes = max_blob_bytes
        self._collections: dict[int, ShareCollection] = {}  # by number, once this peer has started that gather
        self._fetches = BackgroundTasks()

    async def run(self, number: int, blob: bytes) -> list[Contribution]:
        """Run final gather `number`. Return this peer's share `blob` and all fetched shares, in member order."""
        names, own = self._members.names, self._transport.peer_id
        others = [peer for peer in names if peer != own and peer in self._transport.trust.allow]
        share = await self._sign(number, blob)
        collection = ShareCollection(
            share, blob, others, share_error=partial(self._share_error, number), reject=self._reject
        )
        self._collections[number] = collection
        watching = BackgroundTasks()
        for peer in others:
            watching.start(self._watch(number, collection, peer))
        try:
            await self._collect(collection)
        finally:
            blobs = collection.close()
            watching.cancel()
            self._fetches.cancel()
        await asyncio.gather(*(self._say_done(number, peer) for peer in collection.others - collection.unreachable))
        return [Contribution(names[peer], Round(number), blobs[peer]) for peer in names if peer in blobs]

    async def linger(self) -> None:
        """Wait up to `wait_s` for members that are still fetching from this peer.

        Members that have sent nothing for STALL_S are ignored.
        """
        with suppress(TimeoutError):
            async with limit(self._wait_s):
                while self._still_asking():
                    await asyncio.sleep(PROBE_S / 10)

    def _still_asking(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return any(
            now_s - asked_s < STALL_S for each in self._collections.values() for asked_s in each.asked_s.values()
        )

    async def _collect(self, collection: ShareCollection) -> None:
        await self._within(self._wait_s, collection, lambda: collection.answered)
        await self._within(self._wait_s, collection, lambda: collection.idle)
        collection.settle()
        self._fetch_wanted(collection)
        compare_s = min(COMPARE_S, self._wait_s)
        await self._within(compare_s, collection, lambda: collection.ended)
        await self._within(self._wait_s - compare_s, collection, lambda: collection.ended or not collection.missing)
        if missing := collection.missing:
            names = ", ".join(self._members.names[peer] for peer in missing)
            logger.warning(
                "final gather ended without the shares of %s: these shares were late or could not be downloaded", names
            )

    async def _within(self, timeout_s: float, collection: ShareCollection, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds or `timeout_s` has passed."""
        with suppress(TimeoutError):
            async with limit(timeout_s):
                await collection.until(condition)

    async def _watch(self, number: int, collection: ShareCollection, peer: str) -> None:
        """Keep polling a member for the shares that it holds, even if the member seems gone.

        When `settled` is set, poll at once.
        """
        pause_s = PROBE_S
        while True:
            settled = collection.settled.is_set()
            try:
                async with limit(STALL_S):
                    await persist(lambda: self._ask(number, collection, peer), peer=self._members.names[peer])
            except (PeerUnreachable, TimeoutError):
                collection.mark_unreachable(peer)
            if settled:
                await asyncio.sleep(pause_s)
            else:
                with suppress(TimeoutError):
                    async with limit(pause_s):
                        await collection.settled.wait()
            pause_s = min(1.5 * pause_s, SLOWEST_PROBE_S) if collection.settled.is_set() == settled else PROBE_S

    async def _ask(self, number: int, collection: ShareCollection, peer: str) -> None:
        asked = collection.members_to_ask(peer)
        request = {"number": number, **collection.to_map([]), "missing": asked}
        if report := await self._call(peer, request, within_s=VIEW_S):
            collection.apply_report(peer, report, compared=request["settled"])
            self._fetch_wanted(collection)

    async def _say_done(self, number: int, peer: str) -> None:
        with suppress(BrokenStream, Unreachable, TimeoutError):
            await self._call(peer, {"number": number, "done": True}, within_s=VIEW_S)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        """Report to a member which shares this peer holds; the report is empty if this gather has not started here."""
        collection, report = self._collections.get(_number_of(request)), {}
        if collection is not None and request.get("done") is True:
            collection.left_by(remote)
        elif collection is not None:
            asked = members_in(request.get("missing", []))
            if remote in collection.others:
                collection.asked_by(remote, asyncio.get_running_loop().time())
                if "share" in request:
                    collection.apply_report(remote, request)
                    self._fetch_wanted(collection)
            report = collection.to_map(asked)
        await stream.send_object(report)
        await stream.ended()

    def _fetch_wanted(self, collection: ShareCollection) -> None:
        for share, holders in collection.start():
            self._fetches.start(self._fetch(collection, share, holders))

    async def _fetch(self, collection: ShareCollection, share: SignedShare, holders: list[str]) -> None:
        """Fetch one share from the peers that claim to hold it, within the time limit of the whole gather."""
        blob, timeout_s = None, WAITS * self._wait_s
        try:
            blob = await self._bulk.get(share.sha, share.length, holders, at_most=self._max_bytes, timeout_s=timeout_s)
            await offload(len(blob), partial(self._store.put, blob))
        except ContentUnavailable as error:
            logger.info("the share of %s could not be fetched: %s", self._members.names[share.owner], error)
        finally:
            collection.fetched(share.owner, blob)
            self._fetch_wanted(collection)

    async def _sign(self, number: int, blob: bytes) -> SignedShare:
        """Sign this peer's share, and store its blob so that other members can fetch it."""
        sha = await offload(len(blob), partial(self._store.put, blob))
        own, signatures = self._transport.peer_id, self._transport.trust.signatures
        return signed(own, number, sha, len(blob), members=self._members, signatures=signatures)

    def _share_error(self, number: int, share: SignedShare) -> str:
        """Return a one-line reason why this share is invalid, or "" if it is valid."""
        if share.length > self._max_bytes:
            return f"a share of {share.length} bytes; at most {self._max_bytes} are allowed"
        if not is_signed(share, number, members=self._members, signatures=self._transport.trust.signatures):
            return f"the share of {self._members.names[share.owner]} is not signed by its owner for gather {number}"
        return ""

    def _reject(self, peer: str, why: str) -> None:
        self._transport.trust.rejections.note("payloads", self._members.names[peer], why)


def _number_of(request: Request) -> int:
    try:
        return checked_int(request.get("number"), "number", maximum=MAX_NUMBER)
    except MalformedMessage as bad:
        raise Unreadable(str(bad)) from bad
