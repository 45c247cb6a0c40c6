"""Round-trip times to several peers: how often each is asked, and when one counts as lost."""

from __future__ import annotations

import asyncio

from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.round_trips import ANSWER_S, EVERY_S, MAX_PEERS, RATE, RETRY_S, Link, RoundTrips
from outerloop.swarm.p2p.transport import Unreachable
from tests.support.swarm.virtual_clock import virtual


class Peers:
    """Peers that answer after 0.01 s, except those that are away."""

    def __init__(self) -> None:
        self.away: dict[str, Exception | None] = {}
        self.asked: list[str] = []

    async def ask(self, address: str) -> float:
        self.asked.append(address)
        if address in self.away:
            error = self.away[address]
            if error is None:
                await asyncio.Event().wait()
            else:
                raise error
        await asyncio.sleep(0.01)
        return 0.01


@virtual
async def test_a_peer_that_stops_answering_is_lost_after_two_requests_and_can_return() -> None:
    peers = Peers()
    trips = RoundTrips(peers.ask)
    trips.follow({"a": "at a", "b": "at b"})
    await asyncio.sleep(2 * EVERY_S)
    assert trips.links == {"a": Link(0.01), "b": Link(0.01)}
    for error in (Unreachable("refused"), TimeoutError()):
        peers.away = {"at a": error}
        await asyncio.sleep(0.5 * EVERY_S)
        assert not trips.links["a"].is_lost, "one request without an answer is not enough"
        await asyncio.sleep(2 * EVERY_S)
        assert trips.links["a"].is_lost and not trips.links["b"].is_lost
        peers.away = {}
        await asyncio.sleep(1.5 * EVERY_S)
        assert trips.links["a"] == Link(0.01)


async def after_an_answer() -> tuple[Peers, RoundTrips]:
    """One peer, "a", which has answered once."""
    peers = Peers()
    trips = RoundTrips(peers.ask)
    trips.follow({"a": "at a"})
    await asyncio.sleep(0.5)
    return peers, trips


@virtual
async def test_a_peer_that_refuses_requests_is_not_lost() -> None:
    peers, trips = await after_an_answer()
    peers.away = {"at a": BrokenStream("too many requests")}
    await asyncio.sleep(100)
    assert trips.links["a"] == Link(0.01) and len(peers.asked) > 90


@virtual
async def test_at_most_so_many_peers_are_measured_and_not_all_at_once() -> None:
    peers = Peers()
    trips = RoundTrips(peers.ask)
    trips.follow({f"{i}": f"at {i}" for i in range(2 * MAX_PEERS)})
    await asyncio.sleep(10)
    assert len(peers.asked) <= 10 * 2 * RATE + 1, "new peers, and those that have answered"
    await asyncio.sleep(MAX_PEERS / RATE)
    assert len(set(peers.asked)) == MAX_PEERS


@virtual
async def test_a_frozen_peer_is_lost_after_two_time_limits() -> None:
    peers, trips = await after_an_answer()
    peers.away = {"at a": None}
    await asyncio.sleep(EVERY_S + 2 * (ANSWER_S + EVERY_S))
    assert trips.links["a"] == Link(0.01, 2) and trips.links["a"].is_lost


@virtual
async def test_a_peer_that_has_never_answered_is_asked_rarely_and_is_not_lost() -> None:
    peers = Peers()
    peers.away = {"at a": Unreachable("no route")}
    trips = RoundTrips(peers.ask)
    trips.follow({"a": "at a"})
    await asyncio.sleep(10.5 * RETRY_S)
    assert len(peers.asked) == 11 and trips.links["a"] == Link(None, 11) and not trips.links["a"].is_lost


@virtual
async def test_many_peers_are_asked_in_turn() -> None:
    peers, seconds = Peers(), 100
    trips = RoundTrips(peers.ask)
    trips.follow({f"{i}": f"at {i}" for i in range(400)})
    await asyncio.sleep(400 / RATE + 1)
    peers.asked.clear()
    await asyncio.sleep(seconds)
    assert len(peers.asked) <= RATE * seconds
    assert set(peers.asked) == {f"at {i}" for i in range(400)}


@virtual
async def test_peers_that_are_no_longer_followed_are_forgotten_and_new_addresses_used() -> None:
    peers = Peers()
    trips = RoundTrips(peers.ask)
    trips.follow({"a": "at a", "b": "at b"})
    await asyncio.sleep(0.5)
    trips.follow({"b": "at c"})
    peers.asked.clear()
    await asyncio.sleep(3 * EVERY_S)
    assert trips.links.keys() == {"b"} and set(peers.asked) == {"at c"}
