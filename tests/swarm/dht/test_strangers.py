"""Runs form although a stranger calls itself the nodes at the roster's key, and says what it likes of the roster."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, P2PContext, P2PDaemonError, P2PHandlerError, PeerID, ServicerBase
from hivemind.proto import dht_pb2

from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.dht.storage import MAX_KEY_BYTES
from outerloop.swarm.p2p.network_thread import NetworkThread
from outerloop.types import Round
from tests.support.swarm.dht_scene import KEY
from tests.support.swarm.loopback import Make, together

PATIENCE_S = 60
NODES = 41
NEVER_OVER = msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([math.inf, math.inf, []])))


class Stranger(ServicerBase):
    """Says that it stored what it is given, and that the newest roster has nobody in it."""

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        return f"DHTProtocol.{method_name}"

    async def rpc_ping(self, request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse:
        return dht_pb2.PingResponse(peer=node(0), available=True)

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        return dht_pb2.StoreResponse(store_ok=[True] * len(request.keys), peer=node(0))

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        result = dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=NEVER_OVER, expiration_time=math.inf)
        return dht_pb2.FindResponse(results=[result] * len(request.keys), peer=node(0))

    async def attack(self, at: str) -> list[str]:
        """Call itself many nodes next to the key, then ask for it 60,000 times at once. What it is refused for."""
        self.p2p = await P2P.create(initial_peers=[at], use_relay=False, nat_port_map=False, auto_nat=False)
        await self.add_p2p_handlers(self.p2p)
        stub: Any = self.get_stub(self.p2p, PeerID.from_base58(at.rpartition("/p2p/")[2]))
        asked = [stub.rpc_ping(dht_pb2.PingRequest(peer=node(number)), timeout=PATIENCE_S) for number in range(NODES)]
        keys = dht_pb2.FindRequest(keys=[KEY.to_bytes()] * 60_000)
        return [await _refusal(call) for call in (*asked, stub.rpc_find(keys, timeout=PATIENCE_S))]


def node(number: int) -> dht_pb2.NodeInfo:
    return dht_pb2.NodeInfo(node_id=DHTID(KEY ^ (number + 1)).to_bytes())


async def _refusal(call: Any) -> str:
    try:
        await call
    except (P2PDaemonError, P2PHandlerError) as error:
        return str(error)
    return ""


@pytest.fixture
def stranger() -> Iterator[tuple[Stranger, NetworkThread]]:
    thread, one = NetworkThread("stranger"), Stranger()
    try:
        yield one, thread
    finally:
        if hasattr(one, "p2p"):
            thread.call(one.p2p.shutdown(), timeout_s=PATIENCE_S)
        thread.stop(timeout_s=PATIENCE_S)


def largest_answer(full: SwarmGather, reader: SwarmGather) -> bytes:
    """What a peer reads of a key that is full at another."""
    shelf, protocol = full.node.dht.protocol.storage, reader.node.dht.protocol
    for number in range(200):
        shelf.store_subkey(KEY, f"{number}", bytes(8000), time.time() + 60)
    request = dht_pb2.FindRequest(keys=[KEY.to_bytes()])
    asked = protocol.get_stub(PeerID.from_base58(full.node.peer_id)).rpc_find(request, timeout=PATIENCE_S)
    return reader.node.call(asked, timeout_s=PATIENCE_S).results[0].value


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "open"])
def test_a_run_forms_and_lands_rounds_beside_a_stranger_at_the_key_of_its_roster(
    listed: bool, make: Make, stranger: tuple[Stranger, NetworkThread], tmp_path: Path
) -> None:
    ids = [Signatures.of(ensure_identity(tmp_path / f"identity{index}")).peer_id for index in range(2)]
    options = {"peers": 2, "join_timeout_s": PATIENCE_S, "allow": ids if listed else []}
    first = make(**options)
    one, thread = stranger
    refused = thread.call(one.attack(first.address[0]), timeout_s=2 * PATIENCE_S)
    if listed:
        assert len(refused) == NODES + 1 and all("protocols not supported" in why for why in refused), refused
    else:
        assert refused[:-1] == [""] * NODES and "one valid key" in refused[-1], refused
    nodes = first.node.dht.protocol.routing_table.uid_to_peer_id
    assert len(nodes) == (0 if listed else 1)
    pair = [first, make(**options)]
    assert together(pair, lambda peer: peer.join()) == [None, None]
    landed = together(pair, lambda peer: peer.start(b"x", Round(0)).wait(PATIENCE_S))
    assert [[part.peer for part in parts] for parts in landed] == [sorted(peer.peer for peer in pair)] * 2
    assert [peer.counters()["refused_requests"] for peer in pair] == [float(not listed), 0.0], (
        "members are within bounds"
    )
    assert listed or len(largest_answer(*pair)) > MAX_KEY_BYTES * 0.9, "p2pd lets the largest answer through"
