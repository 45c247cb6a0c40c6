"""A peer's DHT node: create it, and join the DHT through the initial peers."""

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
from hivemind.utils.timed_storage import ValueWithExpiration

from outerloop.swarm.dht.protocol import GuardedProtocol, node_id_of
from outerloop.swarm.dht.records import SignedRecords
from outerloop.swarm.timeouts import limit

READ_S = 4.0  # time limit of one search; a node that does not answer is abandoned after 3 s
WORKERS = 20
"""Number of nodes asked concurrently. A search starts by asking this many nodes that this peer already knows, so they
never wait behind nodes that other peers have merely named."""


class DhtNode(DHTNode):
    """hivemind's node with time limits, because a malicious node could keep naming nearer nodes that never answer."""

    async def get(self, key: Any, latest: bool = False, **options: Any) -> ValueWithExpiration[Any] | None:
        """Return the value found for `key` within READ_S, or None.

        `latest`: whether to search all nodes near the key for the latest value.
        """
        enough = {"sufficient_expiration_time": float("inf")} if latest else {}
        [search] = (await self.get_many([key], **enough, **options, return_futures=True)).values()
        try:
            _, late = await asyncio.wait([search], timeout=READ_S)
            for pending in list(self.pending_get_requests[DHTID.generate(source=key)]) if late else ():
                pending.finish_search()  # makes the search return the records found so far
            return await search
        except asyncio.CancelledError:
            search.cancel()
            raise

    async def store(self, key: Any, value: Any, expiration_time: float, subkey: Any = None, **options: Any) -> bool:
        """Write a record to this node and to the nearest known nodes.

        If WORKERS nodes are known, search for nearer ones and write to them as well. Return whether any known node has
        accepted the record or, if no other node is known, whether this node has.
        """
        protocol, key_id = self.protocol, DHTID.generate(source=key)
        packed = protocol.serializer.dumps
        record = DHTRecord(key_id.to_bytes(), packed(subkey), packed(value), expiration_time)
        content = protocol.record_validator.sign_value(record)
        own = protocol.storage.store_subkey(key_id, subkey, content, expiration_time)
        known = protocol.routing_table.get_nearest_neighbors(key_id, WORKERS, exclude=self.node_id)
        requests = (
            protocol.call_store(peer, [key_id], [content], expiration_time, subkeys=[subkey]) for _, peer in known
        )
        stored = [any(answer or ()) for answer in await asyncio.gather(*requests)]
        if len(known) == WORKERS:
            with suppress(TimeoutError):
                async with limit(READ_S):
                    await super().store(key, value, expiration_time, subkey, **options)
        return any(stored) or (own and not stored)


async def enter_dht(
    p2p: P2P,
    *,
    initial_peers: Iterable[str],
    records: SignedRecords,
    is_member: Callable[[str], bool],
    observer: bool,
    strict: bool,
) -> DhtNode:
    """Create a node, join the DHT, and return the node. It answers requests unless it belongs to an observer.

    In a run with an allow-list, the node is isolated: it neither sends nor answers requests, because the listed peers
    exchange their records directly (listed_roster.py). Requests that reach the node cost almost no time, regardless of
    their size.

    hivemind's `create` always uses hivemind's own protocol. So the node is created in client mode, in which it answers
    no requests, and the guarded protocol then replaces hivemind's. Nothing is cached, because every read must return
    the latest records.

    Raises:
        RuntimeError: if no initial peer answers.
        ValidationError: if `strict` is set, and an initial peer cannot dial this node, or the clocks of the initial
            peer and this node differ too much.
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
    if records.trust.allow.closed:
        return node
    if not observer:
        await answer(protocol, p2p)
    if peers := {PeerID.from_base58(address.rpartition("/p2p/")[2]) for address in initial_peers}:
        await _greet(protocol, peers, strict=strict)
        looking = protocol.spawn(node.find_nearest_nodes([node.node_id]))
        await asyncio.wait([looking], timeout=protocol.wait_timeout)  # the search continues in the background
    return node


async def _greet(protocol: GuardedProtocol, peers: Collection[PeerID], *, strict: bool) -> None:
    """Ping these peers, so that they and this node know each other. Raises an error if none of them answers."""
    pings = [protocol.call_ping(peer, validate=True, strict=strict) for peer in peers]
    answers = await asyncio.gather(*pings, return_exceptions=True)
    if any(isinstance(answer, DHTID) for answer in answers):
        return
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    raise RuntimeError("no initial peer answers")


async def guarded(plain: DHTProtocol, records: SignedRecords, *, is_member: Callable[[str], bool]) -> GuardedProtocol:
    """Return a GuardedProtocol with the settings of `plain`. It answers no requests until `answer` is called."""
    table = plain.routing_table
    sizes = table.bucket_size, table.depth_modulo, plain.num_replicas, plain.wait_timeout
    protocol = await GuardedProtocol.create(
        plain.p2p, plain.node_id, *sizes, client_mode=True, record_validator=records
    )
    protocol.guard(records, is_member)
    return protocol


async def answer(protocol: GuardedProtocol, p2p: P2P) -> None:
    """Start answering requests, so that other peers can add this peer to their routing tables."""
    protocol.client_mode = False
    protocol.node_info = dht_pb2.NodeInfo(node_id=protocol.node_id.to_bytes())
    await protocol.add_p2p_handlers(p2p)
