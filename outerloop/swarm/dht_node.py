"""A peer's node in the DHT: made, and taken in by the initial peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from hivemind.dht import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, PeerID
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.timed_storage import ValueWithExpiration

from outerloop.swarm.dht_guard import GuardedProtocol, answer, guarded, node_id_of
from outerloop.swarm.records import SignedRecords
from outerloop.types import UserError

READ_S = 4.0  # of one read: nodes that do not answer are given up after 3 s
WORKERS = 20
"""Nodes that are asked at a time: as many as a search begins with, so that none of those that this peer knows waits for
a node that another one has only named."""


class Node(DHTNode):
    """hivemind's, with reads that come to an end: other nodes can name ever nearer ones that do not answer."""

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
) -> Node:
    """Return a node that answers, unless it is an observer's, and that knows the nodes near its own.

    hivemind's `create` makes the protocol itself, so it makes a client's, which asks and answers nobody, and gives it
    up for the guarded one. Nothing is cached: what is read here is read to be the latest.

    Raises:
        NotAllowed: no initial peer takes it in, for it is on none of their lists.
        RuntimeError: no initial peer answers.
        ValidationError: `strict`, and an initial peer's clock is too far off, or it cannot call back.
    """
    node = await Node.create(
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
        looking = asyncio.create_task(node.find_nearest_nodes([node.node_id]))
        await asyncio.wait([looking], timeout=protocol.wait_timeout)  # the rest of the search goes on by itself
    return node


async def _greet(protocol: GuardedProtocol, peers: Iterable[PeerID], *, strict: bool) -> None:
    """Make this node known to these peers, and them to it; one that answers is enough."""
    answers = await asyncio.gather(*(protocol.call_ping(peer, validate=True, strict=strict) for peer in peers))
    if any(node_id is not None for node_id in answers):
        return
    for peer in peers:
        if not await protocol.admitted_by(peer):
            raise NotAllowed(f"{peer} turns this peer away: there, type exchange.allow=[...,{protocol.p2p.peer_id}]")
    raise RuntimeError("no initial peer answers")
