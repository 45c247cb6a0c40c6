"""An assembly: everybody's bytes to everybody, when peers come at times of their own and some never do.

The first member in the order of names collects; the others bring it what they have and are handed out who is in:

    member                                    collector
    {number, sha, length} ->
                                              until all members that still answer have come, and no longer than `wait_s`
                                              <- {busy: true} now and then: silence means frozen
                                              <- {met: [[peer, sha, length], ...]}; it holds the bytes of all of them
    gets the bytes of the others, from their owner or the collector; {busy: true} meanwhile
    {have: true} ->

    are you there?        {number} ->         <- {met} as above, or {} while there is no list yet

A collector need not have come itself: its network thread collects as soon as somebody brings something. Who finds it
dead or frozen goes to the next in the order; who finds nobody before it collects. A new collector takes over a list
that it hears of, so there are two only where some reach each other and others do not. Who comes after the list was
made is handed it all the same. Every peer gets the bytes of all: meant for weights once, at the end of a run.
What travels holds its owner's signature (shares.py), over the number of the assembly as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from outerloop.swarm.bulk import Bulk
from outerloop.swarm.contents import Contents
from outerloop.swarm.fields import MAX_AMOUNT, MAX_NUMBER, BadMessage, digest, items, whole
from outerloop.swarm.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.handshake import busy_until
from outerloop.swarm.holders import Unobtainable
from outerloop.swarm.membership import Membership
from outerloop.swarm.sealed import SEAL_BYTES
from outerloop.swarm.shares import Shares
from outerloop.swarm.timeouts import LINGER_S, PROBE_S, STALL_S, VIEW_S, limit
from outerloop.swarm.transport import PeerGone, Request, Transport, Unreachable, persist
from outerloop.types import Contribution, Round

logger = logging.getLogger(__name__)
Brought = dict[str, tuple[bytes, int]]
"""Peer id -> sha256 and length of what it brought."""


class Assembly:
    """One peer's part in the assemblies of a run, which have rising numbers.

    wait_s           how long a collector waits for the others after the first has come
    max_blob_bytes   largest content that is taken from another
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
        self._brought: defaultdict[int, Brought] = defaultdict(dict)
        self._lists: dict[int, asyncio.Future[Brought]] = {}
        self._collecting: dict[int, asyncio.Task[None]] = {}
        self._serving: set[str] = set()
        self._owed: set[str] = set()  # who has brought something here, and not said yet that it has all

    async def serve(self) -> None:
        await self._transport.serve(self._protocol, allowed=self._members.__contains__, handler=self._answer)

    async def meet(self, number: int, blob: bytes) -> list[Contribution]:
        """What was brought by all who are on the list, in the order of names; a late peer's own bytes are not."""
        own_id, names = self._transport.peer_id, self._members.names
        content = await self._shares.seal(number, blob)
        own = self._store.put(content), len(content)
        blobs: dict[str, bytes] = {}
        for peer in names:
            if peer == own_id:
                self._bring(number, own_id, own)
                blobs = await self._get_all(number, await self._list(number), [own_id])
                break
            try:
                blobs = await self._attend(peer, number, own)
                break
            except (PeerGone, TimeoutError) as error:
                logger.warning("%s does not collect (%s): now the next", names[peer], error)
        return [Contribution(names[peer], Round(number), blobs[peer]) for peer in names if peer in blobs]

    async def linger(self) -> None:
        """Stay for those that have not got everything yet."""
        while self._serving:  # each of them is given up when it falls silent
            await asyncio.sleep(PROBE_S / 10)
        try:
            async with limit(LINGER_S):
                while self._owed:
                    await asyncio.sleep(PROBE_S / 10)
        except TimeoutError:
            logger.warning("left although these may not have got everything: %s", ", ".join(sorted(self._owed)))

    async def _attend(self, collector: str, number: int, own: tuple[bytes, int]) -> dict[str, bytes]:
        """Bring, get the list, get the bytes. Raises PeerGone or TimeoutError when the collector answers no more."""
        while True:
            try:
                async with self._transport.open_stream(collector, self._protocol) as stream:
                    await stream.send_object({"number": number, "sha": own[0], "length": own[1]})
                    while "met" not in (told := await stream.receive_object()):
                        pass
                    met = self._list_from(told)
                    blobs = await self._get_busily(number, met, collector, stream)
                    self._adopt(number, met)
                    await stream.send_object({"have": True})
                    return blobs
            except (BrokenStream, Unreachable, TimeoutError):
                await self._probe_long(collector, number)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        number, made = _number_of(request), self._list(_number_of(request))
        if "sha" not in request:
            await stream.send_object(_told(made.result()) if made.done() else {})
            await stream.ended()
            return
        self._owed.add(remote)
        self._bring(number, remote, _entry(request.get("sha"), request.get("length")))
        await busy_until(stream, made)
        self._serving.add(remote)
        try:
            await stream.send_object(_told(made.result()))
            while "have" not in await stream.receive_object():
                pass
            self._owed.discard(remote)
        finally:
            self._serving.discard(remote)

    def _list(self, number: int) -> asyncio.Future[Brought]:
        """Who is in: done when this peer knows."""
        if number not in self._lists:
            self._lists[number] = asyncio.get_running_loop().create_future()
        return self._lists[number]

    def _adopt(self, number: int, met: Brought) -> None:
        if not self._list(number).done():
            self._list(number).set_result(met)

    def _bring(self, number: int, peer: str, entry: tuple[bytes, int]) -> None:
        """The first who brings something makes this peer a collector."""
        self._brought[number][peer] = entry
        if number not in self._collecting and not self._list(number).done():
            self._collecting[number] = asyncio.create_task(self._collect(number))

    async def _collect(self, number: int) -> None:
        try:
            async with limit(self._wait_s):
                await asyncio.gather(*(self._wait_for(number, peer) for peer in self._members.names))
        except TimeoutError:
            logger.warning("an assembly goes on without those who did not come in %g s", self._wait_s)
        if not self._list(number).done():
            brought = dict(self._brought[number])
            blobs = await self._get_all(number, brought, [])
            self._adopt(number, {peer: brought[peer] for peer in blobs})

    async def _wait_for(self, number: int, peer: str) -> None:
        """Until a peer has brought something, knows a list already, or answers no more."""
        while peer not in self._brought[number] and not self._list(number).done():
            try:
                told = await self._probe_long(peer, number) if peer != self._transport.peer_id else {}
            except (PeerGone, TimeoutError):
                logger.warning("an assembly goes on without %s, which does not answer", self._members.names[peer])
                return
            if "met" in told:
                self._adopt(number, self._list_from(told))
            await asyncio.sleep(PROBE_S)

    async def _probe_long(self, peer: str, number: int) -> Request:
        """A sign of life. Raises PeerGone or TimeoutError when there is none for as long as a stall may take."""
        async with limit(STALL_S):
            return await persist(lambda: self._probe(peer, number), peer=self._members.names[peer])

    async def _probe(self, peer: str, number: int) -> Request:
        async with limit(VIEW_S), self._transport.open_stream(peer, self._protocol) as stream:
            await stream.send_object({"number": number})
            return await stream.receive_object()

    async def _get_busily(self, number: int, met: Brought, collector: str, stream: Stream) -> dict[str, bytes]:
        get = asyncio.create_task(self._get_all(number, met, [collector]))
        try:
            await busy_until(stream, get)
            return get.result()
        finally:
            get.cancel()

    async def _get_all(self, number: int, met: Brought, also: Sequence[str]) -> dict[str, bytes]:
        """The bytes of all, in the order of names; without those that cannot be had, or are not their owner's."""
        got = await asyncio.gather(*(self._get_share(number, peer, met[peer], also) for peer in met))
        blobs = dict(zip(met, got, strict=True))
        return {peer: blob for peer in self._members.names if (blob := blobs.get(peer)) is not None}

    async def _get_share(self, number: int, owner: str, entry: tuple[bytes, int], also: Sequence[str]) -> bytes | None:
        content = await self._get(owner, *entry, also)
        return None if content is None else await self._shares.open(number, owner, content)

    async def _get(self, owner: str, sha: bytes, length: int, also: Sequence[str]) -> bytes | None:
        if (held := self._store.get(sha)) is not None:
            return held
        holders = [peer for peer in dict.fromkeys([owner, *also]) if peer != self._transport.peer_id]
        try:
            blob = await self._bulk.get(sha, length, holders, at_most=self._most_bytes, timeout_s=self._wait_s)
        except Unobtainable as error:
            logger.warning("what %s brought cannot be had: %s", self._members.names[owner], error)
            return None
        self._store.put(blob)
        return blob

    def _list_from(self, told: Request) -> Brought:
        """Raises BrokenStream when a list is none, or names others than members."""
        try:
            entries = [items(entry, "an entry") for entry in items(told["met"], "met")]
            met = {str(peer): _entry(sha, length) for peer, sha, length in entries}
        except ValueError as error:
            raise Unreadable(f"not a list of an assembly: {error}") from error
        if not met.keys() <= self._members.names.keys():
            raise Unreadable("an assembly with others than the members")
        return met


def _told(met: Brought) -> dict[str, Any]:
    return {"met": [[peer, sha, length] for peer, (sha, length) in met.items()]}


def _entry(sha: Any, length: Any) -> tuple[bytes, int]:
    try:
        return digest(sha, "sha"), whole(length, "length", most=MAX_AMOUNT)
    except BadMessage as bad:
        raise Unreadable(str(bad)) from bad


def _number_of(request: Request) -> int:
    try:
        return whole(request.get("number"), "number", most=MAX_NUMBER)
    except BadMessage as bad:
        raise Unreadable(str(bad)) from bad
