"""The network model's simulations: what must hold at any size, peers that are late or gone, pairs."""

import itertools
import math

import numpy as np
import pytest

from outerloop.plan import gather, gossip
from outerloop.plan.forecast import GRACE_S, LEAD_S, RESTART_S, forecast
from outerloop.plan.gather import decide, queued_arrivals
from outerloop.plan.links import CONCURRENT_TRANSFERS, DECIDE_S, Links, gather_messages, gather_s, pair_s
from outerloop.plan.transfers import GatherSimulation, fair_rates
from tests.support.toy_plan import EVEN, MB, fleet, method

# transfers


def test_shares_are_max_min_fair():
    """0 -> 1 and 0 -> 2 share 0's uplink of 10; 2's downlink of 2 is tighter, so what is left goes to the other."""
    up, down = np.array([10.0, 10.0, 10.0]), np.array([10.0, 10.0, 2.0])
    assert fair_rates(np.array([0, 0]), np.array([1, 2]), up, down) == pytest.approx([8.0, 2.0])
    assert fair_rates(np.array([0, 0]), np.array([1, 2]), up, 10 * down) == pytest.approx([5.0, 5.0])


def test_no_link_carries_more_than_it_can():
    draw = np.random.default_rng(0)
    up, down = draw.uniform(1, 9, 6), draw.uniform(1, 9, 6)
    sources, targets = np.array([(i, j) for i in range(6) for j in range(6) if i != j and draw.random() < 0.6]).T
    rates = fair_rates(sources, targets, up, down)
    loads = [np.bincount(ends, rates, 6) / links for ends, links in ((sources, up), (targets, down))]
    assert max(map(np.max, loads)) <= 1 + 1e-9
    assert all(max(loads[0][i], loads[1][j]) > 1 - 1e-9 for i, j in zip(sources, targets, strict=True))


@pytest.mark.parametrize("peers", [2, 5, CONCURRENT_TRANSFERS + 1])
def test_few_peers_keep_every_link_full(peers):
    arrivals = GatherSimulation(np.zeros(peers), MB, up=MB, down=MB, at_once=CONCURRENT_TRANSFERS).arrivals()
    assert arrivals.max() == pytest.approx(gather_messages(peers)) == pytest.approx(peers - 1)


@pytest.mark.parametrize("peers", [10, 17, 18, 27])
def test_many_peers_in_one_order_queue(peers):
    """Payloads go out in waves of 8, and a wave reaches 8 peers after the other 8: P − 1 + 8 ⌊(P − 2) / 8⌋."""
    arrivals = GatherSimulation(np.zeros(peers), MB, up=MB, down=MB, at_once=CONCURRENT_TRANSFERS).arrivals()
    assert arrivals.max() == pytest.approx(peers - 1 + 8 * ((peers - 2) // 8))
    assert peers - 1 < gather_messages(peers) <= arrivals.max() * (1 + 1e-9)


def test_every_payload_arrives_once_ready():
    ready = np.array([0.0, 5.0, 1.0])
    arrivals = GatherSimulation(ready, MB, up=MB, down=MB, at_once=CONCURRENT_TRANSFERS).arrivals()
    assert np.diag(arrivals).tolist() == ready.tolist()
    assert arrivals[:, 0] == pytest.approx([0, 2, 2])  # two copies share its uplink
    assert arrivals[:, 1] == pytest.approx([7, 5, 7])
    assert arrivals[:, 2] == pytest.approx([3, 3, 1])  # beside 0's on 1's downlink, which has room for half of each


def test_transfers_shorter_than_the_clock_can_tell_come_to_an_end():
    """After 10^6 s a float64 of seconds knows steps of 10^-10 s: a transfer of microseconds ends at one of them."""
    draw = np.random.default_rng(0)
    for _ in range(50):
        ready = 1e6 + draw.uniform(0.0, 20e-6, size=4)
        arrivals = GatherSimulation(ready, 10.0, up=MB, down=MB, at_once=CONCURRENT_TRANSFERS).arrivals()
        assert 10e-6 < arrivals.max() - ready.max() < 40e-6


@pytest.mark.parametrize("size", [0.02 * MB, 0.2 * MB, 2 * MB], ids=["short", "longer", "long"])
@pytest.mark.parametrize("spread_s", [0.1, 3.0, 30.0])
def test_queues_and_transfers_agree(size, spread_s):
    """The fast model of many peers against the exact one, at the most peers that are simulated exactly."""
    whole = fleet(gather.EXACT_PEERS)
    for seed in range(5):
        ready = np.random.default_rng(seed).uniform(0, spread_s, gather.EXACT_PEERS)
        exact = GatherSimulation(ready, size, up=MB, down=MB, at_once=CONCURRENT_TRANSFERS).arrivals().max()
        assert queued_arrivals(ready, size, whole).max() == pytest.approx(exact, rel=0.02)


# who is late, who is gone


def test_a_peer_slower_than_the_grace_is_left_out():
    """Payloads of 2 of 3 lie with the leader at 2 s; three seconds later the round closes without the third."""
    decided, late = decide(np.array([0.0, 0.0, 100.0]), fleet(3), method(size=MB), grace_s=GRACE_S)
    assert late.tolist() == [False, False, True]
    assert decided == pytest.approx(2 + GRACE_S + DECIDE_S)


def test_a_short_grace_leaves_slow_peers_behind():
    uneven = fleet(9, spread=0.3)
    patient, hasty = (gather.simulate(uneven, method(size=MB), grace_s=grace_s) for grace_s in (1e6, GRACE_S))
    assert patient.met == 1 and 0.5 < hasty.met < 1
    assert hasty.waiting_s < 0.75 * patient.waiting_s


def test_an_absent_peer_costs_the_grace():
    calm = gather.simulate(fleet(4), method(), grace_s=GRACE_S)
    absent = gather.simulate(fleet(4), method(), grace_s=GRACE_S, absent=1)
    assert absent.round_s - calm.round_s == pytest.approx(GRACE_S - 2)  # and one payload of 2 s does not come


def test_a_peer_that_misses_a_round_skips_its_steps(monkeypatch):
    """One of 3 peers takes 1.5 s per step: every other round closes without it, 3 s after the others' payloads.

    Two rounds take 30 + 2 + 3 and 30 + 2 s, and the two decisions. The slow peer launches its first after 45 s, when it
    is decided, and its second at once: it takes the steps of one of them only.
    """
    monkeypatch.setattr(gather, "lognormal_factors", lambda draw, spread, count: np.array([1.0, 1.0, 1.5]))
    seen = forecast(fleet(3), method(size=MB))
    assert seen.rate.round_s == pytest.approx(30 + 2 + GRACE_S / 2 + DECIDE_S)
    assert seen.rate.steps == pytest.approx((30 + 30 + 30 / 2) / 3)
    assert seen.rate.met == pytest.approx(5 / 6)
    assert seen.round_s == pytest.approx(seen.rate.round_s * 30 / 25)
    assert seen.utilization == pytest.approx(25 / seen.rate.round_s)
    assert seen.tokens_per_s(100.0) == pytest.approx(3 * 100 * 25 / seen.rate.round_s)


@pytest.mark.parametrize(
    ("peers", "sync_every", "delay", "spread"),
    [(1, 15, 0, 0.05), (9, 30, 29, 0.05), (9, 30, 29, 0.3), (9, 100, 99, 0.05), (16, 1000, 500, 0.05)],
)
def test_no_peer_computes_more_than_all_the_time(peers, sync_every, delay, spread):
    """Ten thousand inner steps of 1 s on each peer take at least ten thousand seconds, however fast the links are."""
    many = method(sync_every=sync_every, delay=delay)
    for rate in (MB, 10 * MB, 100 * MB, 1000 * MB):
        seen = forecast(fleet(peers, Links(rate, rate, 0.05), spread=spread), many)
        assert seen.utilization <= 1 + 1e-9
        assert 10_000 * peers / seen.tokens_per_s(1.0) >= 10_000 * (1 - 1e-9)
        assert seen.round_s == pytest.approx(sync_every + seen.exposed_s + seen.waiting_s)


@pytest.mark.parametrize(("peers", "sync_every", "delay"), [(9, 30, 29), (16, 15, 0), (64, 30, 1), (16, 1000, 500)])
def test_faster_links_lose_no_tokens(peers, sync_every, delay):
    """Up to the random paces of the simulation, which move the rounds that close without a slow peer."""
    rates = [
        forecast(fleet(peers, Links(rate, rate, 0.05), spread=0.05), method(sync_every=sync_every, delay=delay))
        for rate in (0.01 * MB, 0.1 * MB, MB, 10 * MB, 100 * MB)
    ]
    tokens = [seen.tokens_per_s(1.0) for seen in rates]
    assert all(faster >= 0.995 * slower for slower, faster in itertools.pairwise(tokens))


def test_failures_cost_rounds_and_peers():
    often = fleet(4, failures_per_hour=0.1)
    seen, calm = forecast(often, method(state_bytes=40 * MB)), forecast(fleet(4), method())
    share = 1 - math.exp(-0.1 / 3600 * 4 * 2 * calm.round_s)
    assert seen.round_s == pytest.approx(calm.round_s + share * (GRACE_S - 2 + LEAD_S / 4))
    assert seen.present == pytest.approx(1 / (1 + 0.1 / 3600 * (RESTART_S + 40)))
    assert seen.tokens_per_s(1.0) < calm.tokens_per_s(1.0)


def test_a_pair_without_a_majority_waits_for_the_other():
    seen, calm = forecast(fleet(2, failures_per_hour=1.0), method()), forecast(fleet(2), method())
    assert seen.round_s == pytest.approx(calm.round_s + RESTART_S * (1 - math.exp(-2 * calm.round_s / 3600)))
    assert seen.present == 1  # the wait is part of the round, and is not subtracted from the tokens a second time


@pytest.mark.parametrize("kind", ["gather", "gossip"])
def test_one_peer_neither_waits_nor_exchanges(kind):
    """Its pace is the mean, whatever the spread: no other peer is slower or faster."""
    seen = forecast(fleet(1, spread=2.0, codec_s=0.25), method(kind, size=1000 * MB, delay=2))
    assert (seen.round_s, seen.exposed_s, seen.waiting_s) == pytest.approx((30.25, 0.25, 0.0))
    assert seen.overrides == []


def test_uneven_paces_cost_waiting():
    seen = [forecast(fleet(8, spread=spread), method()) for spread in (0.0, 0.05, 0.2)]
    assert seen[0].waiting_s == pytest.approx(0) and seen[0].waiting_s < seen[1].waiting_s < seen[2].waiting_s
    assert all(one.round_s == pytest.approx(30 + one.exposed_s + one.waiting_s) for one in seen)


# gossip


def test_a_pair_takes_one_payload_and_a_turn():
    seen = forecast(fleet(2), method("gossip"))
    assert seen.rate.met == 1
    assert seen.exposed_s == pytest.approx(pair_s(EVEN, 2 * MB))
    assert 0 < seen.waiting_s < 2 * gossip.PROPOSAL_INTERVAL_S  # the first of two turns
    assert seen.sent_bytes_per_day == pytest.approx(2 * MB * 86400 / seen.round_s)


def test_gossip_stays_flat_where_gather_grows():
    few, many = (
        {kind: forecast(fleet(peers, spread=0.1), method(kind, size=20 * MB)) for kind in ("gather", "gossip")}
        for peers in (16, 1000)
    )
    assert many["gossip"].round_s <= 1.1 * few["gossip"].round_s
    grown = (many["gather"].round_s - 30) / (few["gather"].round_s - 30)
    assert grown == pytest.approx(gather_messages(1000) / gather_messages(16), rel=0.1)
    assert many["gather"].exposed_s == pytest.approx(gather_s(EVEN, 20 * MB, 1000), rel=0.01)


def test_nobody_waits_longer_than_patience():
    for peers in (3, 9):
        seen = forecast(fleet(peers, spread=0.3), method("gossip"))
        assert 0 < seen.rate.met < 1
        assert seen.waiting_s < gossip.PATIENCE_SHARE * 30
