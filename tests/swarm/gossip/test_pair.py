"""Pairs of gossip rounds: their transitions, and what holds for the two peers of a pair whatever is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from outerloop.swarm.gossip.pair import MAX_DECISIONS, Decisions, Pair, PairState
from outerloop.types import Round
from tests.support.swarm.gossip_scene import Member, gather
from tests.support.swarm.memory_network import MemoryNetwork
from tests.support.swarm.pairing_world import World
from tests.support.swarm.virtual_clock import now_s, run

PROPOSED, ACCEPTED, BOUND = PairState.PROPOSED, PairState.ACCEPTED, PairState.BOUND
TURNED_DOWN, APPLIED, DROPPED, IN_DOUBT = (
    PairState.TURNED_DOWN, PairState.APPLIED, PairState.DROPPED, PairState.IN_DOUBT
)  # fmt: skip
EVENTS: dict[str, Callable[[Pair], None]] = {
    "accept": lambda pair: pair.accept(Round(3)),
    "turn_down": lambda pair: pair.turn_down(partner_ready=True),
    "bind": lambda pair: pair.bind(b"payload"),
    "learn yes": lambda pair: pair.learn(applied=True),
    "learn no": lambda pair: pair.learn(applied=False),
    "decide yes": lambda pair: pair.decide(b"payload", applied=True),
    "decide no": lambda pair: pair.decide(b"payload", applied=False),
    "lose": lambda pair: pair.lose(),
}
TRANSITIONS = {
    (True, PROPOSED): {"accept": ACCEPTED, "turn_down": TURNED_DOWN, "lose": TURNED_DOWN},
    (True, ACCEPTED): {"bind": BOUND, "lose": DROPPED},
    (True, BOUND): {"learn yes": APPLIED, "learn no": DROPPED, "lose": IN_DOUBT},
    (False, ACCEPTED): {"decide yes": APPLIED, "decide no": DROPPED, "lose": DROPPED},
    **{(is_proposer, state): {"lose": state} for is_proposer in (True, False) for state in (APPLIED, DROPPED)},
    **{(True, state): {"lose": state} for state in (TURNED_DOWN, IN_DOUBT)},
}
"""What each event does to the pair of a proposer (True) or an acceptor. All others are impossible."""
ENDS_OF_BOTH = {
    (TURNED_DOWN, None),
    (TURNED_DOWN, DROPPED),  # the acceptance was lost or arrived too late
    (DROPPED, DROPPED),
    (APPLIED, APPLIED),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("is_proposer", "state"), TRANSITIONS)
def test_every_other_transition_is_impossible(is_proposer: bool, state: PairState, event: str) -> None:
    pair = Pair("b", b"token", is_proposer=is_proposer, state=state)
    expected = TRANSITIONS[is_proposer, state].get(event)
    if expected is None:
        with pytest.raises(AssertionError):
            EVENTS[event](pair)
    else:
        EVENTS[event](pair)
    assert pair.state is (expected or state)


def test_a_pair_carries_what_the_partner_contributes() -> None:
    proposer, acceptor = Pair.proposed_to("b", b"token"), Pair.accepted_from("a", b"token", Round(7))
    proposer.accept(Round(3))
    proposer.bind(b"of b")
    acceptor.decide(b"of a", applied=True)
    assert (proposer.round, proposer.payload) == (Round(3), b"of b")
    assert (acceptor.round, acceptor.payload) == (Round(7), b"of a")


def test_a_decision_is_final_and_a_question_before_it_decides_no() -> None:
    decisions = Decisions()
    assert decisions.decide("a", b"1", applied=True) and decisions.decide("a", b"1", applied=False)
    assert not decisions.decide("a", b"2", applied=False) and not decisions.decide("a", b"2", applied=True)
    assert decisions.decide("b", b"2", applied=True), "tokens belong to their proposer"


def test_the_oldest_decisions_are_forgotten() -> None:
    decisions = Decisions()
    for number in range(MAX_DECISIONS + 1):
        decisions.decide("a", number.to_bytes(8, "big"), applied=True)
    assert decisions.decide("a", (1).to_bytes(8, "big"), applied=False)
    assert not decisions.decide("a", (0).to_bytes(8, "big"), applied=False)


@pytest.mark.parametrize("seed", range(10))
def test_the_two_peers_of_a_pair_end_in_the_same_way_whatever_is_lost(seed: int) -> None:
    """One message in ten breaks its stream. That no peer takes part in two pairs is checked by the world."""
    world = World([3.0] * 6, seed=seed, delay_s=(0.0, 2.0), patience=1.0, jitter=0.9, exchange_s=0.5, loss=0.1)
    outcomes = world.run(2000.0).finish().outcomes()
    assert set(outcomes) <= ENDS_OF_BOTH
    assert outcomes[APPLIED, APPLIED] > 100 and outcomes[DROPPED, DROPPED] > 5


@pytest.mark.parametrize("seed", range(10))
def test_only_an_acceptor_that_cannot_be_asked_leaves_a_pair_in_doubt(seed: int) -> None:
    world = World([3.0] * 6, seed=seed, delay_s=(0.0, 2.0), patience=1.0, exchange_s=0.5, loss=0.2, unreachable=0.5)
    outcomes = world.run(2000.0).finish().outcomes()
    assert set(outcomes) <= ENDS_OF_BOTH | {(IN_DOUBT, APPLIED), (IN_DOUBT, DROPPED)}
    assert outcomes[IN_DOUBT, APPLIED] > 0 and outcomes[IN_DOUBT, DROPPED] > 0


class History:
    """All states that the pairs of all peers have entered, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered: list[tuple[Pair, PairState]] = []
        entered = self.entered

        class RecordedPair(Pair):
            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, value)
                if name == "state":
                    entered.append((self, value))

        monkeypatch.setattr("outerloop.swarm.gossip.pairing.Pair", RecordedPair)

    def sides(self) -> dict[bytes, dict[bool, Pair]]:
        """Return token -> whether it is the proposer's -> pair."""
        sides: dict[bytes, dict[bool, Pair]] = defaultdict(dict)
        for pair, _ in self.entered:
            assert sides[pair.token].setdefault(pair.is_proposer, pair) is pair
        return sides

    def outcomes(self) -> Counter[tuple[PairState, PairState | None]]:
        return Counter(
            (pair[True].state, pair[False].state if False in pair else None) for pair in self.sides().values()
        )

    def check_that_each_peer_is_in_one_pair_at_a_time(self) -> None:
        sides, current = self.sides(), {}
        for pair, state in self.entered:
            other = sides[pair.token].get(not pair.is_proposer)
            if state is ACCEPTED:
                assert other is not None and current.setdefault(other.partner, pair) is pair
            elif other is not None and current.get(other.partner) is pair and state is not BOUND:
                del current[other.partner]
        assert not current


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_on_a_bad_network_pairs_end_in_the_same_way_and_one_at_a_time(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams break, peers freeze, and two cannot reach each other for longer than the decision is asked for."""
    history = History(monkeypatch)

    async def scene() -> list[Member]:
        draw, until_s = random.Random(seed), 3600.0
        network = MemoryNetwork(seed=seed, delay_s=(0.1, 2.0), break_chance=0.02)
        members = await gather(network, 6)

        async def harm() -> None:
            while now_s() < until_s:
                await asyncio.sleep(draw.uniform(5, 20))
                pairs = [(member.peer_id, member.gossip.pair) for member in members if member.gossip.pair]
                for peer, pair in pairs[:1]:
                    network.part(peer, pair.partner)
                    if draw.random() < 0.2:
                        network.freeze(peer)
                    await asyncio.sleep(150)
                    network.thaw(peer)
                    network.heal()

        await asyncio.gather(harm(), *(member.work(15.0, until_s=until_s) for member in members))
        await asyncio.sleep(300)
        return members

    members = run(scene(), limit_s=10_000)
    outcomes = history.outcomes()
    assert set(outcomes) <= ENDS_OF_BOTH | {(IN_DOUBT, APPLIED), (IN_DOUBT, DROPPED)}
    assert outcomes[APPLIED, APPLIED] > 100 and outcomes[DROPPED, DROPPED] > 5
    history.check_that_each_peer_is_in_one_pair_at_a_time()
    dropped = sum(pair.state in (DROPPED, IN_DOUBT) for sides in history.sides().values() for pair in sides.values())
    assert sum(member.gossip.dropped_pairs for member in members) == dropped
