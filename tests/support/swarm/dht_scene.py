"""DHT nodes that call each other without a network, and strangers among them that ask and answer what they like."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import msgpack
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2PContext, P2PHandlerError, PeerID
from hivemind.proto import dht_pb2

from outerloop.swarm.access.access_control import AccessControl, AllowList, RejectionLog
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.dht.node import answer, guarded
from outerloop.swarm.dht.protocol import GuardedProtocol, node_id_of
from outerloop.swarm.dht.records import SignedRecords

KEY = DHTID.generate(source="outerloop/r/roster")


def trust(number: int, *, allow: Iterable[str] = ()) -> AccessControl:
    """Of the peer with this number; peers on the list by number or id."""
    key = Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))
    signatures = Signatures(key)
    return AccessControl(signatures, AllowList(list(allow), own=signatures.peer_id), RejectionLog())


def id_of(number: int) -> str:
    return trust(number).signatures.peer_id


def peer(number: int) -> PeerID:
    return PeerID.from_base58(id_of(number))


def signed(number: int, value: Any = None, *, life_s: float = 60.0, key: DHTID = KEY, subkey: bytes = b"") -> DHTRecord:
    """A record of a peer. `subkey`: packed in another way than usual."""
    plain = DHTRecord(
        key.to_bytes(), subkey or msgpack.packb(id_of(number)), msgpack.packb(value), time.time() + life_s
    )
    return DHTRecord(plain.key, plain.subkey, SignedRecords(trust(number)).sign_value(plain), plain.expiration_time)


def store_of(*records: DHTRecord, in_cache: bool = False) -> dht_pb2.StoreRequest:
    return dht_pb2.StoreRequest(
        keys=[one.key for one in records],
        subkeys=[one.subkey for one in records],
        values=[one.value for one in records],
        expiration_time=[one.expiration_time for one in records],
        in_cache=[in_cache] * len(records),
    )


class Wire:
    """Who can be called. `nodes`: whatever answers rpc_* of hivemind's protocol, by peer id."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}

    async def node(self, own: AccessControl, *, members: Iterable[str] = ()) -> GuardedProtocol:
        """A node as a peer of a run has it."""
        members = set(members)
        p2p = SimpleNamespace(peer_id=PeerID.from_base58(own.signatures.peer_id))
        plain = await DHTProtocol.create(p2p, node_id_of(p2p.peer_id), 20, 5, 5, 3.0, client_mode=True)

        def is_member(peer_id: str) -> bool:
            return (own.allow.closed and peer_id in own.allow) or peer_id in members

        node = await guarded(plain, SignedRecords(own, is_member=is_member), is_member=is_member)
        node.add_p2p_handlers = _nothing  # type: ignore[method-assign]
        await answer(node, p2p)
        return self.join(own.signatures.peer_id, node)

    async def plain(self, own: AccessControl) -> DHTProtocol:
        """A node of hivemind's, as it was before."""
        p2p = SimpleNamespace(peer_id=PeerID.from_base58(own.signatures.peer_id))
        node = await DHTProtocol.create(
            p2p, node_id_of(p2p.peer_id), 20, 5, 5, 3.0, client_mode=True, record_validator=SignedRecords(own)
        )
        node.node_info = dht_pb2.NodeInfo(node_id=node.node_id.to_bytes())
        return self.join(own.signatures.peer_id, node)

    def join(self, peer_id: str, node: Any) -> Any:
        self.nodes[peer_id] = node
        node.get_stub = lambda peer: _Stub(self, peer.to_base58(), peer_id)
        return node

    async def call(self, number: int, to: str, rpc: str, request: Any) -> Any:
        """What a peer is answered. Raises P2PHandlerError with what the other side raised, as libp2p does."""
        context = P2PContext(handle_name=f"DHTProtocol.{rpc}", local_id=PeerID.from_base58(to), remote_id=peer(number))
        return await _called(getattr(self.nodes[to], rpc), request, context)


class _Stub:
    def __init__(self, wire: Wire, to: str, own: str) -> None:
        self._wire, self._to, self._own = wire, to, own

    def __getattr__(self, rpc: str) -> Any:
        async def call(request: Any, timeout: float) -> Any:
            context = P2PContext(
                handle_name=rpc, local_id=PeerID.from_base58(self._to), remote_id=PeerID.from_base58(self._own)
            )
            called = getattr(self._wire.nodes[self._to], rpc) if self._to in self._wire.nodes else _silent
            return await asyncio.wait_for(_called(called, request, context), timeout)

        return call


async def _called(rpc: Any, request: Any, context: P2PContext) -> Any:
    try:
        return await rpc(request, context)
    except Exception as error:
        raise P2PHandlerError(repr(error)) from error


async def _silent(request: Any, context: P2PContext) -> None:
    await asyncio.Event().wait()


async def _nothing(*args: Any, **options: Any) -> None:
    pass
