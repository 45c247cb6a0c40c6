"""The pairing machine: who accepts whom, and, on a clock of events, how even and how idle many peers are."""

from __future__ import annotations

import itertools
import random

import pytest

from outerloop.swarm.gossip.pair import Pair, PairState
from outerloop.swarm.gossip.pairing import ApplyPair, Pairing, ProposePair, StayAlone
from outerloop.swarm.gossip.pairing_timeout import PairingTimeout
from outerloop.swarm.gossip.partner_policy import RandomPartners, ScheduledPartners
from outerloop.types import Round, UserError
from tests.support.swarm.pairing_world import World

FIRST, TOKEN = Round(0), b"proposal"


def machine(own: str = "b", others: str = "acde") -> Pairing:
    tokens = itertools.count()
    return Pairing(
        own, RandomPartners(list(others)), draw=random.Random(0), new_token=lambda: next(tokens).to_bytes(8, "big")
    )


def ready(own: str = "b", others: str = "acde") -> Pairing:
    pairing = machine(own, others)
    assert pairing.ready(FIRST) is None
    return pairing


def proposed(action: object) -> Pair:
    assert isinstance(action, ProposePair)
    return action.pair


def meet(pairing: Pairing, peer: str) -> None:
    """Accept the proposal of a peer, and end the round with it."""
    pair = pairing.asked(peer, TOKEN, FIRST)
    assert pair is not None
    pair.decide(b"payload", applied=True)
    assert pairing.ended(pair) == ApplyPair(pair)


def turned_down(pairing: Pairing, pair: Pair, *, partner_ready: bool) -> object:
    pair.turn_down(partner_ready=partner_ready)
    return pairing.ended(pair)


def test_without_others_there_is_nothing_to_wait_for() -> None:
    pairing = machine(others="")
    assert pairing.ready(FIRST) == StayAlone() and pairing.round is None


def test_it_proposes_to_ready_peers_only_and_to_one_at_a_time() -> None:
    pairing = ready()
    assert pairing.turn() is None
    pairing.heard("c", Round(7))
    pairing.heard("d", FIRST)
    pairing.heard("d", None)
    assert proposed(pairing.turn()).partner == "c"
    pairing.heard("e", FIRST)
    assert pairing.turn() is None


def test_a_peer_outside_the_pool_accepts_no_proposal() -> None:
    assert machine().asked("a", TOKEN, FIRST) is None
    pairing = ready()
    pairing.leave()
    assert pairing.asked("a", TOKEN, FIRST) is None and not pairing.is_looking


def test_the_first_proposal_is_accepted_and_the_next_is_not() -> None:
    pairing = ready()
    assert pairing.asked("c", TOKEN, Round(3)) and not pairing.is_looking
    assert not pairing.asked("d", TOKEN, FIRST) and not pairing.asked("c", TOKEN, Round(3))
    pairing.heard("d", FIRST)
    assert pairing.turn() is None


def test_of_crossed_proposals_the_one_of_the_smaller_id_stands() -> None:
    small, large = ready("a", "b"), ready("b", "a")
    small.heard("b", FIRST)
    large.heard("a", FIRST)
    of_small, of_large = proposed(small.turn()), proposed(large.turn())
    assert small.asked("b", of_large.token, FIRST) is None
    accepted = large.asked("a", of_small.token, FIRST)
    assert accepted is not None and large.pair is accepted
    assert turned_down(large, of_large, partner_ready=True) is None and large.pair is accepted
    assert small.accepted(of_small, FIRST) and small.pair is of_small


def test_an_acceptance_that_arrives_too_late_is_turned_down() -> None:
    small, large = ready("a", "b"), ready("b", "a")
    small.heard("b", FIRST)
    large.heard("a", FIRST)
    late = proposed(large.turn())
    assert large.asked("a", proposed(small.turn()).token, FIRST)
    assert not large.accepted(late, FIRST) and late.state is PairState.TURNED_DOWN
    pairing = ready()
    pairing.heard("c", FIRST)
    late = proposed(pairing.turn())
    pairing.leave()
    assert not pairing.accepted(late, FIRST) and late.state is PairState.TURNED_DOWN


def test_a_peer_that_is_not_ready_is_asked_again_only_after_a_new_notice() -> None:
    pairing = ready()
    pairing.heard("c", FIRST)
    assert turned_down(pairing, proposed(pairing.turn()), partner_ready=False) is None and pairing.turn() is None
    pairing.heard("c", FIRST)
    assert turned_down(pairing, proposed(pairing.turn()), partner_ready=True) is None
    assert proposed(pairing.turn()).partner == "c"


def test_after_its_timeout_it_takes_any_partner_and_then_a_solo_step() -> None:
    pairing = ready()
    for peer in "acde":
        pairing.heard(peer, None)
    for peer in ("c", "d"):
        meet(pairing, peer)
        pairing.ready(FIRST)
    pairing.heard("c", FIRST)
    assert pairing.turn() is None, "c and d were its last partners"
    pair = proposed(pairing.time_out())
    assert pair.partner == "c" and turned_down(pairing, pair, partner_ready=True) == StayAlone()
    assert ready().time_out() == StayAlone()


def test_a_timeout_within_a_pair_waits_for_its_end() -> None:
    pairing = ready()
    pair = pairing.asked("c", TOKEN, FIRST)
    assert pair is not None and pairing.time_out() is None
    pair.lose()
    assert pairing.ended(pair) == StayAlone() and pairing.pair is None


@pytest.mark.parametrize(("around", "left_out"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (6, 3), (7, 3), (63, 3)])
def test_the_last_partners_are_left_out_but_never_more_than_half(around: int, left_out: int) -> None:
    others = [f"p{index:02}" for index in range(63)]
    partners = RandomPartners(others)
    for peer in others:
        partners.met(peer)
    assert partners.preferred(others, around=around) == others[: 63 - left_out]


def test_the_last_two_peers_pair_with_each_other() -> None:
    pairing = ready("b", "acde")
    for peer in "acde":
        pairing.heard(peer, None)
    met = []
    for number in range(8):
        pairing.heard("c", FIRST)
        if action := pairing.turn():
            pair = proposed(action)
            assert pair.partner == "c" and pairing.accepted(pair, FIRST)
            pair.bind(b"payload")
            pair.learn(applied=True)
            assert pairing.ended(pair) == ApplyPair(pair)
            met.append(number)
        pairing.leave()
        pairing.ready(FIRST)
    assert met == [0, 4, 5, 6, 7], "for LATELY rounds the others may still come"


def test_dealt_partners_are_mutual_and_meet_in_the_same_round_only() -> None:
    peers = ["c", "a", "e", "b", "d"]
    dealt = {own: ScheduledPartners(peers, own, seed=1) for own in peers}
    for number in range(20):
        partners = {own: list(dealt[own].of(Round(number))) for own in peers}
        assert sorted(map(len, partners.values())) == [0, 1, 1, 1, 1]
        assert all(partners[other] == [own] for own in peers for other in partners[own])
    assert dealt["a"].fit(Round(1), Round(1)) and not dealt["a"].fit(Round(1), Round(2))


def test_patience_is_a_part_of_the_usual_inner_time() -> None:
    patience = PairingTimeout(0.25, min_s=1.0, max_s=50.0)
    assert [patience.timeout_s(inner_s) for inner_s in (40.0, 40.0, 900.0, 40.0)] == [10.0] * 4
    assert PairingTimeout(0.25, min_s=1.0, max_s=50.0).timeout_s(0.1) == 1.0
    assert PairingTimeout(0.25, min_s=1.0, max_s=50.0).timeout_s(1e6) == 50.0
    for bad in ({"fraction": -1.0, "min_s": 1.0, "max_s": 2.0}, {"fraction": 0.1, "min_s": 3.0, "max_s": 2.0}):
        with pytest.raises(UserError, match=r"set exchange\."):
            PairingTimeout(**bad)


def inner_s(size: int, slowest: float) -> list[float]:
    """60 s for the fastest, evenly up to `slowest` times that."""
    return [60 * (1 + (slowest - 1) * index / (size - 1)) for index in range(size)]


def chi_square(world: World) -> float:
    """Of all pairs, against x_a x_b: even draws among peers that are ready unequally often."""
    names = world.names
    total = {a: sum(world.met[a, b] for b in names) for a in names}
    x = {a: total[a] ** 0.5 for a in names}
    for _ in range(200):
        x = {a: (x[a] + total[a] / sum(x[b] for b in names if b != a)) / 2 for a in names}
    expected = {(a, b): x[a] * x[b] for a in names for b in names if a < b}
    return sum((world.met[pair] - e) ** 2 / e for pair, e in expected.items())


@pytest.mark.parametrize(("size", "limit"), [(7, 36.1), (8, 45.3)])
@pytest.mark.parametrize("seed", [0, 1])
def test_unequal_speeds_meet_at_random_and_idle_little(size: int, limit: float, seed: int) -> None:
    """Speeds of 1x to 3x, 150 to 400 rounds a peer: chi-square below its 99.9 % point, s (s − 3) / 2 degrees."""
    until_s = 500 * 60.0
    world = World(inner_s(size, 3.0), seed=seed).run(until_s)
    assert max(world.idle_s.values()) < 0.2 * until_s
    assert sum(world.solo.values()) < 0.2 * sum(world.rounds.values())
    assert all(world.met[a, b] > 0 for a in world.names for b in world.names if a != b)
    assert chi_square(world) < limit


@pytest.mark.long
def test_equal_speeds_all_meet_all() -> None:
    """Peers of equal speed that are ready together once stay so for a while, so draws depend on each other: everybody
    meets everybody between half and twice as often as even draws would."""
    world = World([60.0] * 8, seed=0).run(1000 * 60.0)
    even = sum(world.met.values()) / (8 * 7)
    assert all(even / 2 < world.met[a, b] < 2 * even for a in world.names for b in world.names if a != b)


@pytest.mark.parametrize(("notified", "solo"), [(3, 0.25), (16, 0.03)])
def test_many_peers_need_few_notices(notified: int, solo: float) -> None:
    """32 peers of 1x to 3x, of which a few hear of each: most rounds are pairs."""
    world = World(inner_s(32, 3.0), seed=0, notified=notified).run(100 * 60.0)
    assert sum(world.solo.values()) < solo * sum(world.rounds.values())
    assert max(world.idle_s.values()) < 0.2 * 100 * 60.0


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_ever_in_two_pairs_whatever_is_late(seed: int) -> None:
    """Messages take as long as inner steps do. What the world asserts at every step is the test."""
    world = World([3.0] * 6, seed=seed, delay_s=(0.0, 2.0), patience=1.0, jitter=0.9, exchange_s=0.5).run(400.0)
    assert sum(world.met.values()) > 50


def test_a_partner_that_was_struck_is_not_met_for_twice_as_long_every_time() -> None:
    """Two strikes: four own rounds; again after that: sixteen less what a good pair forgave; 64 at most."""

    def rounds_until_it_is_met(pairing: Pairing) -> int:
        number = 0
        while True:
            number += 1
            pairing.ready(FIRST)
            pair = pairing.asked("b", TOKEN, FIRST)
            if pair is not None:
                pair.decide(b"payload", applied=True)
                pairing.ended(pair)
                return number
            pairing.leave()

    pairing = machine("a", "bc")
    assert rounds_until_it_is_met(pairing) == 1
    waits = []
    for _ in range(8):
        pairing.strike("b")
        waits.append(rounds_until_it_is_met(pairing))
    assert waits == [4, 8, 16, 32, 64, 64, 64, 64]
    pairing.strike("b")
    pairing.ready(Round(0))
    pairing.heard("b", Round(0))
    assert not pairing.asked("b", TOKEN, FIRST) and pairing.turn() is None
    assert pairing.asked("c", TOKEN, FIRST), "nobody else pays for it"


def lose(pairing: Pairing, peer: str) -> None:
    """Accept the proposal of a peer, which then loses the pair."""
    pair = pairing.asked(peer, TOKEN, FIRST)
    assert pair is not None
    pair.lose()
    assert pairing.ended(pair) is None


def test_a_partner_that_lost_a_pair_is_not_met_again_in_that_round_and_the_next() -> None:
    """Before: it could make this peer wait in every round for as long as a pair may take."""
    pairing = ready("a", "bc")
    lose(pairing, "b")
    pairing.heard("b", FIRST)
    assert pairing.turn() is None and not pairing.asked("b", TOKEN, FIRST)
    assert pairing.asked("c", TOKEN, FIRST), "no other partner pays for it"
    pairing.leave()
    pairing.ready(FIRST)
    assert not pairing.asked("b", TOKEN, FIRST)
    pairing.leave()
    pairing.ready(FIRST)
    assert pairing.asked("b", TOKEN, FIRST)


def test_pairs_that_count_forgive_those_that_were_lost() -> None:
    """As of a partner on a slow link that loses half of its pairs: it is never excluded for longer than one round."""
    pairing = machine("a", "bc")
    for _ in range(10):
        pairing.ready(FIRST)
        lose(pairing, "b")
        pairing.leave()
        pairing.ready(FIRST)
        assert not pairing.asked("b", TOKEN, FIRST)
        pairing.leave()
        pairing.ready(FIRST)
        meet(pairing, "b")


def test_a_partner_that_turns_proposals_down_is_not_excluded() -> None:
    pairing = ready("a", "bc")
    for _ in range(3):
        pairing.heard("b", FIRST)
        pair = proposed(pairing.turn())
        pair.lose()
        assert pair.state is PairState.TURNED_DOWN and pairing.ended(pair) is None
    assert pairing.asked("b", TOKEN, FIRST)


def test_nobody_waits_for_a_dealt_partner_that_it_would_not_meet() -> None:
    """Before: as long as a scheduled partner is waited for, two minutes, in up to 64 rounds."""
    pairing = machine("a", "b")
    pairing.partners = ScheduledPartners(["a", "b"], "a", seed=0)
    pairing.strike("b")
    waited = []
    for number in range(6):
        waited.append(pairing.ready(Round(number)) is None)
        pairing.leave()
    assert waited == [False] * 3 + [True] * 3
