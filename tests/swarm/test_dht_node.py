"""A read of the DHT ends with what honest nodes hold, whomever liars name."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from dht_scene import KEY, Wire, id_of, peer, signed, store_of, trust
from hivemind.dht import DHTNode
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from virtual_clock import now_s, run

from outerloop.swarm.dht_guard import node_id_of
from outerloop.swarm.dht_node import READ_S, enter_dht
from outerloop.swarm.records import SignedRecords
from outerloop.swarm.signatures import PEER_ID_PREFIX
from outerloop.swarm.timeouts import DHT_S

A, HONEST, LIAR = 1, 2, 3


def nearer() -> list[PeerID]:
    """Ids of nobody, all nearer to the key than the honest node."""
    bound = KEY.xor_distance(node_id_of(peer(HONEST)))
    ids = (PeerID(PEER_ID_PREFIX + number.to_bytes(32, "big")) for number in itertools.count())
    return list(itertools.islice((one for one in ids if KEY.xor_distance(node_id_of(one)) < bound), 200))


async def reader(wire: Wire, *, plain: bool) -> DHTNode:
    """A node that knows an honest one, which holds a record, and a liar that names 20 new nodes each time."""
    honest = await wire.node(trust(HONEST))
    await honest.rpc_store(store_of(signed(HONEST)), SimpleNamespace(remote_id=peer(HONEST)))  # type: ignore[arg-type]
    named = itertools.cycle(nearer())

    async def rpc_find(request: Any, context: Any) -> Any:
        ids = list(itertools.islice(named, 20))
        result = dht_pb2.FindResult(
            type=dht_pb2.NOT_FOUND,
            nearest_peer_ids=[one.to_bytes() for one in ids],
            nearest_node_ids=[node_id_of(one).to_bytes() for one in ids],
        )
        return dht_pb2.FindResponse(results=[result])

    wire.nodes[id_of(LIAR)] = SimpleNamespace(rpc_find=rpc_find)
    own, p2p = trust(A), SimpleNamespace(peer_id=peer(A))
    if plain:
        node = await DHTNode.create(p2p=p2p, client_mode=True, record_validator=SignedRecords(own))
    else:
        options = {"is_member": lambda peer_id: False, "observer": True, "strict": True}
        node = await enter_dht(p2p, initial_peers=[], records=SignedRecords(own), **options)  # type: ignore[arg-type]
    wire.join(id_of(A), node.protocol)
    for known in (HONEST, LIAR):
        await node.protocol.update_routing_table(node_id_of(peer(known)), peer(known))
    return node


@pytest.mark.parametrize("plain", [True, False], ids=["hivemind", "guarded"])
def test_a_liar_that_names_ever_nearer_nodes_does_not_keep_a_reader_from_the_honest(plain: bool) -> None:
    async def scene() -> None:
        node = await reader(Wire(), plain=plain)
        began = now_s()
        try:
            async with asyncio.timeout(DHT_S):
                found = await node.get("outerloop/r/roster", latest=True)
        except TimeoutError:
            found = None
        if plain:
            assert found is None and now_s() - began >= DHT_S, "the attack is real"
        else:
            assert found is not None and set(found.value) == {id_of(HONEST)} and now_s() - began <= READ_S + 0.1

    run(scene())


def test_a_read_that_is_given_up_ends() -> None:
    async def scene() -> None:
        before, node = asyncio.all_tasks(), await reader(Wire(), plain=False)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(READ_S / 2):
                await node.get("outerloop/r/roster", latest=True)
        await asyncio.sleep(2 * DHT_S)
        assert asyncio.all_tasks() == before

    run(scene())
