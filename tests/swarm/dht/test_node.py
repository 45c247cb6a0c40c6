"""A read of the DHT ends with what honest nodes hold, whomever liars name."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.dht import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2

from outerloop.swarm.access.signatures import PEER_ID_PREFIX
from outerloop.swarm.dht.node import READ_S, DhtNode, _greet, enter_dht
from outerloop.swarm.dht.protocol import node_id_of
from outerloop.swarm.dht.records import SignedRecords
from outerloop.swarm.timeouts import DHT_S
from tests.support.swarm.dht_scene import KEY, Wire, id_of, peer, signed, store_of, trust
from tests.support.swarm.virtual_clock import now_s, virtual

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


@virtual
async def test_the_peer_behind_a_relay_is_greeted_and_not_the_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    greeted: list[PeerID] = []

    async def greet(protocol: object, peers: set[PeerID], *, strict: bool) -> None:
        greeted.extend(peers)

    monkeypatch.setattr("outerloop.swarm.dht.node._greet", greet)
    relayed = f"/ip4/192.0.2.1/tcp/4/p2p/{id_of(LIAR)}/p2p-circuit/p2p/{id_of(HONEST)}"
    own, p2p = trust(A), SimpleNamespace(peer_id=peer(A))
    options = {"is_member": lambda peer_id: False, "observer": True, "strict": True}
    node = await enter_dht(p2p, initial_peers=[relayed], records=SignedRecords(own), **options)  # type: ignore[arg-type]
    await node.shutdown()
    assert greeted == [peer(HONEST)]


@pytest.mark.parametrize("plain", [True, False], ids=["hivemind", "guarded"])
@virtual
async def test_a_liar_that_names_ever_nearer_nodes_does_not_keep_a_reader_from_the_honest(plain: bool) -> None:
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


@pytest.mark.parametrize("plain", [True, False], ids=["hivemind", "guarded"])
@virtual
async def test_nor_a_writer(plain: bool) -> None:
    wire = Wire()
    node = await reader(wire, plain=plain)
    began = now_s()
    try:
        async with asyncio.timeout(DHT_S):
            await node.store("outerloop/r/roster", {}, time.time() + 60, subkey=id_of(A))
    except TimeoutError:
        assert plain, "the attack is real"
    held = set(wire.nodes[id_of(HONEST)].storage.get(KEY).value.data)
    assert held == ({id_of(HONEST)} if plain else {id_of(HONEST), id_of(A)})
    assert plain or (now_s() - began <= READ_S and id_of(A) in node.protocol.storage.get(KEY).value)


@virtual
async def test_where_more_nodes_are_known_than_are_told_at_once_nearer_ones_are_searched() -> None:
    """The ten nearest nodes to the key are known to one other alone, which the writer knows beside 38 more."""
    wire = Wire()
    nodes = {number: await wire.node(trust(number)) for number in range(10, 60)}
    order = sorted(nodes, key=lambda number: KEY.xor_distance(nodes[number].node_id))
    writer, nearest = nodes[order[-1]], nodes[order[0]]
    for number in order[10:-1]:
        await writer.update_routing_table(None, peer(number))
    for number in order[:10]:
        await nodes[order[15]].update_routing_table(None, peer(number))
    node = await DHTNode.create(p2p=writer.p2p, node_id=writer.node_id, client_mode=True)
    node.__class__, node.protocol = DhtNode, writer
    assert await node.store("outerloop/r/roster", {}, time.time() + 60, subkey=id_of(order[-1]))
    assert nearest.storage.get(KEY) is not None


@virtual
async def test_a_read_that_is_given_up_ends() -> None:
    before, node = asyncio.all_tasks(), await reader(Wire(), plain=False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(READ_S / 2):
            await node.get("outerloop/r/roster", latest=True)
    await asyncio.sleep(2 * DHT_S)
    assert asyncio.all_tasks() == before


class Initial:
    """Initial peers by number, each with the result of a ping."""

    def __init__(self, **pings: Any) -> None:
        self.pings = pings
        self.p2p = SimpleNamespace(peer_id="me")

    async def call_ping(self, name: str, validate: bool, strict: bool) -> Any:
        answer = self.pings[name]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("pings", "raised"),
    [
        ({"a": ValidationError("clock"), "b": KEY}, None),
        ({"a": KEY, "b": ValidationError("clock"), "c": None}, None),
        ({"a": ValidationError("clock"), "b": None}, ValidationError),
        ({"a": None, "b": None}, RuntimeError),
    ],
)
@virtual
async def test_one_initial_peer_that_answers_as_it_should_is_enough(
    pings: dict[str, Any], raised: type[Exception] | None
) -> None:
    initial: Any = Initial(**pings)
    try:
        await _greet(initial, initial.pings, strict=True)
    except Exception as error:
        assert type(error) is raised
    else:
        assert raised is None


@virtual
async def test_errors_in_the_search_of_a_new_node_are_retrieved() -> None:
    """Nobody waits for the rest of it; asyncio would tell of an exception that was never retrieved."""
    unread: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unread.append(context))
    protocol = (await reader(Wire(), plain=False)).protocol

    async def fails() -> None:
        raise RuntimeError("p2pd has gone")

    task = protocol.spawn(fails())
    await asyncio.wait([task])
    await asyncio.sleep(0)
    kept = weakref.ref(task)
    del task
    gc.collect()
    assert not unread and kept() is None
