"""A peer's node in the DHT: made, and taken in by the initial peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

from hivemind.dht import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.timed_storage import ValueWithExpiration

from outerloop.swarm.dht.protocol import GuardedProtocol, node_id_of
from outerloop.swarm.dht.records import SignedRecords
from outerloop.swarm.timeouts import limit
from outerloop.types import UserError

READ_S = 4.0  # of one search: nodes that do not answer are given up after 3 s
WORKERS = 20
"""Nodes that are asked at a time: as many as a search begins with, so that none of those that this peer knows waits for
a node that another one has only named."""


class DhtNode(DHTNode):
    """hivemind's, with bounded reads and writes: a malicious node could keep naming nearer nodes that never answer."""

    async def get(self, key: Any, latest: bool = False, **options: Any) -> ValueWithExpiration[Any] | None:
        """Return what READ_S finds of a key; `latest`: from all the nodes that are near it."""
        enough = {"sufficient_expiration_time": float("inf")} if latest else {}
        [search] = (await self.get_many([key], **enough, **options, return_futures=True)).values()
        try:
            _, late = await asyncio.wait([search], timeout=READ_S)
            for pending in list(self.pending_get_requests[DHTID.generate(source=key)]) if late else ():
                pending.finish_search()  # with what it has
            return await search
        except asyncio.CancelledError:
            search.cancel()
            raise

    async def store(self, key: Any, value: Any, expiration_time: float, subkey: Any = None, **options: Any) -> bool:
        """Write a record here and to the nearest nodes that this one knows; nearer ones are searched if it knows many.

        False: no other node has taken it, and there are others.
        """
        protocol, key_id = self.protocol, DHTID.generate(source=key)
        packed = protocol.serializer.dumps
        record = DHTRecord(key_id.to_bytes(), packed(subkey), packed(value), expiration_time)
        content = protocol.record_validator.sign_value(record)
        own = protocol.storage.store_subkey(key_id, subkey, content, expiration_time)
        known = protocol.routing_table.get_nearest_neighbors(key_id, WORKERS, exclude=self.node_id)
        told = (protocol.call_store(peer, [key_id], [content], expiration_time, subkeys=[subkey]) for _, peer in known)
        taken = [any(answer or ()) for answer in await asyncio.gather(*told)]
        if len(known) == WORKERS:
            with suppress(TimeoutError):
                async with limit(READ_S):
                    await super().store(key, value, expiration_time, subkey, **options)
        return any(taken) or (own and not taken)


class NotAllowed(UserError):
    """The initial peers have an allow-list, and this peer is not on it."""


async def enter_dht(
    p2p: P2P,
    *,
    initial_peers: Iterable[str],
    records: SignedRecords,
    is_member: Callable[[str], bool],
    observer: bool,
    strict: bool,
) -> DhtNode:
    """Return a node that answers, unless it is an observer's, and that knows the nodes near its own.

    hivemind's `create` makes the protocol itself, so it makes a client's, which asks and answers nobody, and gives it
    up for the guarded one. Nothing is cached: what is read here is read to be the latest.

    Raises:
        NotAllowed: no initial peer takes it in, for it is on none of their lists.
        RuntimeError: no initial peer answers.
        ValidationError: `strict`, and an initial peer's clock is too far off, or it cannot call back.
    """
    node = await DhtNode.create(
        p2p=p2p,
        node_id=node_id_of(p2p.peer_id),
        client_mode=True,
        num_workers=WORKERS,
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        cache_refresh_before_expiry=0,
    )
    node.protocol = protocol = await guarded(node.protocol, records, is_member=is_member)
    if not observer:
        await answer(protocol, p2p)
    if peers := {PeerID.from_base58(Multiaddr(address)["p2p"]) for address in initial_peers}:
        await _greet(protocol, peers, strict=strict)
        looking = protocol.spawn(node.find_nearest_nodes([node.node_id]))
        await asyncio.wait([looking], timeout=protocol.wait_timeout)  # the rest of the search goes on by itself
    return node


async def _greet(protocol: GuardedProtocol, peers: Collection[PeerID], *, strict: bool) -> None:
    """Make this node known to these peers, and them to it; one that answers as it should is enough."""
    pings = [protocol.call_ping(peer, validate=True, strict=strict) for peer in peers]
    answers = await asyncio.gather(*pings, return_exceptions=True)
    if any(isinstance(answer, DHTID) for answer in answers):
        return
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    for peer, admits in zip(peers, await asyncio.gather(*map(protocol.admitted_by, peers)), strict=True):
        if not admits:
            raise NotAllowed(f"{peer} turns this peer away: there, type exchange.allow=[...,{protocol.p2p.peer_id}]")
    raise RuntimeError("no initial peer answers")


async def guarded(plain: DHTProtocol, records: SignedRecords, *, is_member: Callable[[str], bool]) -> GuardedProtocol:
    """A protocol like a client's of hivemind, guarded; it answers nobody until `answer`."""
    table = plain.routing_table
    sizes = table.bucket_size, table.depth_modulo, plain.num_replicas, plain.wait_timeout
    protocol = await GuardedProtocol.create(
        plain.p2p, plain.node_id, *sizes, client_mode=True, record_validator=records
    )
    protocol.guard(records, is_member)
    return protocol


async def answer(protocol: GuardedProtocol, p2p: P2P) -> None:
    """Let others ask, and take this peer into their routing tables."""
    protocol.client_mode = False
    protocol.node_info = dht_pb2.NodeInfo(node_id=protocol.node_id.to_bytes())
    await protocol.add_p2p_handlers(p2p)
