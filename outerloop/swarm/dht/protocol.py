"""The DHT protocol of a swarm: hivemind's protocol, hardened against malicious peers.

    listed       with an allow-list, a request from an unlisted peer is refused before its content is read
    one node     a peer's node id is the hash of its peer id, whatever id it claims; the routing table contains each
                 peer once
    bounded      a find request has one key, a store request has one record, and an answer has one roster; the requests
                 and bytes per second are limited (rate_limits.py)
    validated    a value consists of the valid records in an answer, and expires when the last of them does

hivemind's own protocol answers every key of a request, even repeated ones. It lets one machine act as any number of
nodes, and trusts whatever expiration time a node reports for a value. Features that a run's peers do not need are
omitted: values other than signed records keyed by owner, copies in other peers' caches, and handing records over to new
nodes. They are not needed because owners rewrite their records every few seconds.

The wire format and the method names are hivemind's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.timed_storage import ValueWithExpiration, get_dht_time

from outerloop.swarm.access.rate_limits import Budget, Rate
from outerloop.swarm.access.signatures import is_peer_id
from outerloop.swarm.dht.records import SignedRecords
from outerloop.swarm.dht.storage import MAX_KEY_BYTES, BoundedDhtStorage, size_of
from outerloop.swarm.dht.values import items_of

logger = logging.getLogger(__name__)
T = TypeVar("T")

REQUESTS = Rate(burst=64, per_s=16)
"""Rate limit for requests per remote peer. While a run forms, a peer reads the roster 5 times in the first second, and
once per second after that. Each read sends one or two requests to a node. A peer writes its record at most every 5 s.
In total, an honest peer uses a quarter of the limit."""
REQUESTS_OF_STRANGERS = Rate(burst=1024, per_s=256)
"""Total rate limit for requests from all non-members: enough for about a hundred peers that form an open run at the
same time. A request takes 0.1 ms, whether it is refused or not, so requests at this rate use 3 % of a core."""
BYTES = Rate(burst=8 * MAX_KEY_BYTES, per_s=2 * MAX_KEY_BYTES)
"""Rate limit for the bytes to and from each remote peer: two rosters of the maximum size per second. A peer reads the
roster at most once per second."""
BYTES_OF_STRANGERS = Rate(burst=32 * MAX_KEY_BYTES, per_s=8 * MAX_KEY_BYTES)
"""Total rate limit for the bytes to and from all non-members: enough for a hundred peers that each read a roster of 100
records of 1 KiB once per second. At this rate, they use 84 Mbit/s and 3 % of a core."""


class RequestRefused(Exception):
    """The request is refused. The error message is sent to the requesting peer."""


class NotListed(RequestRefused):
    """The requesting peer is not on the allow-list."""


def node_id_of(peer_id: PeerID) -> DHTID:
    """Return the node id of a peer, which is derived from its peer id and is the only one it can have."""
    return DHTID.generate(source=peer_id.to_bytes())


class GuardedProtocol(DHTProtocol):
    """The DHT protocol of one node, created by node.py. `records` validates records and holds the allow-list."""

    _rpc_handlers = None  # not inherited, because hivemind's class may already have cached its own handlers here
    _stub_type = None
    records: SignedRecords
    storage: BoundedDhtStorage

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        return DHTProtocol._get_handle_name(namespace, method_name)

    def guard(self, records: SignedRecords, is_member: Callable[[str], bool]) -> None:
        """Set the validator and the request limits. Must be called before the node answers any request."""
        self.records = records
        self.storage = BoundedDhtStorage(is_member)
        self._requests = Budget(REQUESTS, REQUESTS_OF_STRANGERS, is_member=is_member)
        self._bytes = Budget(BYTES, BYTES_OF_STRANGERS, is_member=is_member)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def call_ping(self, peer: PeerID, validate: bool = False, strict: bool = True) -> DHTID | None:
        """Ask a peer for its node id. Return the id, or None if the answer is missing or malformed.

        Raises hivemind's ValidationError if `strict` is set, and the peer's clock differs too much from the local clock
        or the peer cannot dial this node.
        """
        try:
            return await super().call_ping(peer, validate, strict)
        except AssertionError as error:
            logger.debug("%s answered a ping without a node id: %s", peer, error)
            return None

    async def rpc_ping(self, request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse:
        self._admit(request, context)
        response = dht_pb2.PingResponse(peer=self.node_info, dht_time=get_dht_time(), available=False)
        if request.peer.node_id:
            if request.validate:
                response.available = await self.call_ping(context.remote_id) is not None
            if response.available or not request.validate:
                await self.update_routing_table(None, context.remote_id)
        return response

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        remote = self._admit(request, context)
        record = request.keys, request.subkeys, request.values, request.expiration_time
        if any(len(column) != 1 for column in record):
            raise self._refused(
                remote, f"a store request must contain one complete record; it has {len(request.keys)} keys"
            )
        if request.peer.node_id:
            await self.update_routing_table(None, context.remote_id)
        is_stored = not any(request.in_cache) and self._take(*(column[0] for column in record), remote=remote)
        return dht_pb2.StoreResponse(store_ok=[is_stored], peer=self.node_info)

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        remote = self._admit(request, context)
        if len(request.keys) != 1 or not _is_node_id(request.keys[0]):
            raise self._refused(remote, f"a find request must contain one valid key; it has {len(request.keys)} keys")
        if request.peer.node_id:
            await self.update_routing_table(None, context.remote_id)
        key, exclude = DHTID.from_bytes(request.keys[0]), node_id_of(context.remote_id)
        result = self._result(key, remote)
        for node_id, peer_id in self.routing_table.get_nearest_neighbors(key, k=self.bucket_size, exclude=exclude):
            result.nearest_node_ids.append(node_id.to_bytes())
            result.nearest_peer_ids.append(peer_id.to_bytes())
        return dht_pb2.FindResponse(results=[result], peer=self.node_info)

    async def call_find(
        self, peer: PeerID, keys: Collection[DHTID]
    ) -> dict[DHTID, tuple[ValueWithExpiration[Any] | None, dict[DHTID, PeerID]]] | None:
        """Ask a peer for its records under `keys`, and for the nodes nearest to each of these keys.

        Return a mapping from key to (records, nodes), or None if no valid answer arrives.
        """
        keys = list(keys)
        request = dht_pb2.FindRequest(keys=[key.to_bytes() for key in keys], peer=self.node_info)
        try:
            async with self.rpc_semaphore:
                response = await self.get_stub(peer).rpc_find(request, timeout=self.wait_timeout)
            found = {
                key: (self._value(key, result, peer), self._nearest(result))
                for key, result in zip(keys, response.results, strict=True)
            }
        except Exception as error:  # whatever protobuf and libp2p raise for untrusted bytes
            logger.debug("%s did not answer a find request: %r", peer, error)
            await self.update_routing_table(None, peer, responded=False)
            return None
        if response.peer.node_id:
            await self.update_routing_table(None, peer)
        return found

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Add or update a peer under its derived node id; remove it if it did not respond or is not on the allow-list.

        `node_id` is ignored.
        """
        node_id, table = node_id_of(peer_id), self.routing_table
        if responded and self._is_listed(peer_id):
            bucket = table.buckets[table.get_bucket_index(node_id)]
            if node_id in table or len(bucket.replacement_nodes) < bucket.size:
                oldest = table.add_or_update_node(node_id, peer_id)
                if oldest is not None:
                    self.spawn(self.call_ping(oldest[1]))
        elif node_id in table:
            del table[node_id]

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work` as a task that is not awaited. Its errors are logged at debug level."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("the DHT: %r", error)

    def _admit(self, request: Any, context: P2PContext) -> str:
        """Return the peer id of a request's sender. Raises RequestRefused if it is not listed or exceeds a limit."""
        remote, asked = context.remote_id.to_base58(), type(request).__name__
        if not self.records.trust.admits(remote, f"the DHT ({asked})", lambda peer_id: True):
            raise NotListed("this peer answers only the peers in its exchange.allow")
        if lacking := self._requests.spend(remote):
            raise self._refused(lacking, f"more than {self._requests.per_s(lacking):.0f} requests per second")
        self._spend(remote, request.ByteSize())
        return remote

    def _spend(self, remote: str, size: int) -> None:
        """Charge `size` bytes to a peer's budget. Raises RequestRefused if they exceed the rate limit."""
        if lacking := self._bytes.spend(remote, size):
            raise self._refused(lacking, f"more than {self._bytes.per_s(lacking):.0f} bytes per second")

    def _refused(self, who: str, why: str) -> RequestRefused:
        """Log that a request is refused, and return the error to raise. `who`: the peer, or "all non-members"."""
        self.records.trust.rejections.note("requests", who, f"the DHT: {why}")
        return RequestRefused(f"{who}: {why}")

    def _take(self, key: bytes, subkey: bytes, value: bytes, expires: float, *, remote: str) -> bool:
        """Store a record if it is valid and newer than the stored one, and if it fits. Return whether it was stored."""
        record = DHTRecord(key, subkey, value, expires)
        if not _is_node_id(key) or not self.records.accepts(record, by=remote):
            return False
        return self.storage.store_subkey(DHTID.from_bytes(key), self.serializer.loads(subkey), value, expires)

    def _result(self, key: DHTID, remote: str) -> dht_pb2.FindResult:
        """Return the records stored under a key, up to MAX_KEY_BYTES in total.

        Raises RequestRefused if they exceed the byte rate limit of `remote`.
        """
        held = self.storage.get(key)
        if held is None or not held.value:
            return dht_pb2.FindResult(type=dht_pb2.NOT_FOUND)
        self._spend(remote, size_of(held.value))
        value, expires = self.serializer.dumps(held.value), held.expiration_time
        return dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=value, expiration_time=expires)

    def _value(self, key: DHTID, result: dht_pb2.FindResult, peer: PeerID) -> ValueWithExpiration[Any] | None:
        """Return the valid records in an answer, or None instead of an empty dict, which hivemind treats as found."""
        if result.type != dht_pb2.FOUND_DICTIONARY:
            return None
        packed, value, latest = self.serializer.dumps, DictionaryDHTValue(), 0.0
        records = [DHTRecord(key.to_bytes(), packed(owner), *rest) for owner, *rest in items_of(result.value)]
        for record in self.records.valid_records(records, by=peer.to_base58()):
            if value.store(self.serializer.loads(record.subkey), record.value, record.expiration_time):
                latest = max(latest, record.expiration_time)
        return ValueWithExpiration(value, latest) if value else None

    def _nearest(self, result: dht_pb2.FindResult) -> dict[DHTID, PeerID]:
        """Return the first `bucket_size` nodes named in an answer, except those with invalid or unlisted peer ids."""
        ids = [PeerID(raw) for raw in result.nearest_peer_ids[: self.bucket_size] if is_peer_id(raw)]
        return {node_id_of(peer_id): peer_id for peer_id in ids if self._is_listed(peer_id)}

    def _is_listed(self, peer_id: PeerID) -> bool:
        return peer_id.to_base58() in self.records.trust.allow


def _is_node_id(raw: bytes) -> bool:
    return len(raw) == DHTID.HASH_NBYTES
