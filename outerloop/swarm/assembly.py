"""An assembly at the end of a run: each member fetches the signed share of every other member itself.

    {number, share: [sha256, length], missing: [peer id, ...]} ->
                                  <- {share, settled, held: [[peer id, sha256, length], ...]}, {} before it has come
    {number, done: true} ->       <- {}

    collect    until every other member has stated its share and it is here, or does not answer any more, or `wait_s` is
               over: members come at times of their own, and some never do
    settled    shares that are still missing may be held by others, who fetched them before their owner died: as long
               as anybody is there who has not settled, and no longer than `wait_s`
    done       nobody needs to stay for this member

What is returned are the shares that this peer has fetched and whose owners signed them (shares.py). What others tell
says only where a share may lie (collection.py): a liar can hand in a bad share of its own, but nobody else's, and it
keeps nobody's share away from those who reach its owner. Where all members stay to the end all have the same shares.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from outerloop.swarm.bulk import Bulk
from outerloop.swarm.collection import NAMED, Collection, Key, members_in
from outerloop.swarm.contents import Contents
from outerloop.swarm.fields import MAX_NUMBER, BadMessage, whole
from outerloop.swarm.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.holders import Unobtainable
from outerloop.swarm.membership import Membership
from outerloop.swarm.sealed import SEAL_BYTES
from outerloop.swarm.shares import Shares
from outerloop.swarm.timeouts import PROBE_S, STALL_S, VIEW_S, limit
from outerloop.swarm.transport import PeerGone, Request, Transport, Unreachable, persist
from outerloop.types import Contribution, Round

logger = logging.getLogger(__name__)
SLOWEST_PROBE_S = 5.0
"""Between two questions to a member that is slow to come: a thousand members are asked 200 times a second."""
WAITS = 3
"""A meeting takes up to so many times `wait_s`: to state a share, to fetch it, and to compare with the others."""


class Assembly:
    """One peer's part in the assemblies of a run, which have rising numbers.

    wait_s           how long this peer waits for the others once it has come
    max_blob_bytes   largest share that is taken from another
    """

    def __init__(
        self,
        transport: Transport,
        membership: Membership,
        store: Contents,
        bulk: Bulk,
        *,
        run: str,
        wait_s: float,
        max_blob_bytes: int,
    ) -> None:
        self._transport = transport
        self._members = membership
        self._shares = Shares(transport, membership)
        self._store = store
        self._bulk = bulk
        self._protocol = f"outerloop/1/{run}/assembly"
        self._wait_s = wait_s
        self._most_bytes = max_blob_bytes + SEAL_BYTES
        self._collections: dict[int, Collection] = {}  # of assemblies that this peer has come to
        self._fetches: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Answer members, from now on."""
        await self._transport.serve(self._protocol, allowed=self._members.__contains__, handler=self._answer)

    async def meet(self, number: int, blob: bytes) -> list[Contribution]:
        """Return the shares of all members that could be fetched, the own one included, in the order of names."""
        names, own = self._members.names, self._transport.peer_id
        others = [peer for peer in names if peer != own and peer in self._transport.trust.allow]
        here = Collection(number, own, others)
        content = await self._shares.seal(number, blob)
        here.add(own, (self._store.put(content), len(content)), blob)
        self._collections[number] = here
        watching = [asyncio.create_task(self._watch(here, peer)) for peer in others]
        try:
            await self._collect(here)
        finally:
            shares = here.close()
            for task in (*watching, *self._fetches):
                task.cancel()
        await asyncio.gather(*(self._say_done(here, peer) for peer in here.others - here.gone))
        return [Contribution(names[peer], Round(number), shares[peer]) for peer in names if peer in shares]

    async def linger(self) -> None:
        """Stay for those that are still fetching; no longer than `wait_s`, nor for one that has fallen silent."""
        with suppress(TimeoutError):
            async with limit(self._wait_s):
                while self._still_asking():
                    await asyncio.sleep(PROBE_S / 10)

    def _still_asking(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return any(now_s - asked_s < STALL_S for one in self._collections.values() for asked_s in one.asking.values())

    async def _collect(self, here: Collection) -> None:
        with suppress(TimeoutError):
            async with limit(self._wait_s):
                await here.until(lambda: here.answered)
        await here.until(lambda: all(owner in here.gone for owner, _ in here.fetching))
        here.settle()
        self._fetch_wanted(here)
        with suppress(TimeoutError):
            async with limit(self._wait_s):
                await here.until(lambda: here.ended)
        if missing := here.missing:
            known = ", ".join(self._members.names[peer] for peer in missing)
            logger.warning("an assembly without the shares of %s: gone, too late, or not to be had", known)

    async def _watch(self, here: Collection, peer: str) -> None:
        """Ask a member again and again what it holds, also one that seems to be gone."""
        pause_s = PROBE_S
        while True:
            try:
                async with limit(STALL_S):
                    await persist(lambda: self._ask(here, peer), peer=self._members.names[peer])
            except (PeerGone, TimeoutError):
                here.lose(peer)
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, SLOWEST_PROBE_S)

    async def _ask(self, here: Collection, peer: str) -> None:
        request = {"number": here.number, "share": list(here.entries[here.own]), "missing": here.missing[:NAMED]}
        if told := await self._exchange(peer, request):
            self._hear(here, peer, told)

    async def _say_done(self, here: Collection, peer: str) -> None:
        with suppress(BrokenStream, Unreachable, TimeoutError):
            await self._exchange(peer, {"number": here.number, "done": True})

    async def _exchange(self, peer: str, request: Request) -> Request:
        async with limit(VIEW_S), self._transport.open_stream(peer, self._protocol) as stream:
            await stream.send_object(request)
            return await stream.receive_object()

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        """Tell a member what this peer holds. Nothing is kept of assemblies that this peer has not come to."""
        here, told = self._collections.get(_number_of(request)), {}
        if here is not None and request.get("done") is True:
            here.asking.pop(remote, None)
        elif here is not None:
            here.asking[remote] = asyncio.get_running_loop().time()
            if remote in here.others and "share" in request:
                self._hear(here, remote, {"share": request["share"]})
            told = here.to_map(members_in(request.get("missing", [])))
        await stream.send_object(told)
        await stream.ended()

    def _hear(self, here: Collection, peer: str, told: Request) -> None:
        here.hear(peer, told)
        self._fetch_wanted(here)

    def _fetch_wanted(self, here: Collection) -> None:
        for key in here.wanted():
            here.fetching.add(key)
            task = asyncio.create_task(self._fetch(here, key))
            self._fetches.add(task)
            task.add_done_callback(self._fetches.discard)

    async def _fetch(self, here: Collection, key: Key) -> None:
        """One share from whoever says that it holds it; refused by the name of who said so first."""
        (owner, entry), holders = key, here.holders[key]
        try:
            if entry[1] > self._most_bytes:
                self._refuse(holders[0], f"a share of {entry[1]} bytes, up to {self._most_bytes} are allowed")
                return
            content = await self._bulk.get(*entry, holders, at_most=self._most_bytes, timeout_s=self._wait_s)
            share, why = await self._shares.open(here.number, owner, content)
            if why:
                self._refuse(holders[0], why)
            elif owner not in here.shares:
                self._store.put(content)
                here.add(owner, entry, share)
        except Unobtainable as error:
            logger.warning("the share of %s cannot be had: %s", self._members.names[owner], error)
        finally:
            here.fetched(key)
            self._fetch_wanted(here)

    def _refuse(self, peer: str, why: str) -> None:
        self._transport.trust.refusals.note("payloads", self._members.names[peer], why)


def _number_of(request: Request) -> int:
    try:
        return whole(request.get("number"), "number", most=MAX_NUMBER)
    except BadMessage as bad:
        raise Unreadable(str(bad)) from bad
