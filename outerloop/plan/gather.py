"""Simulate a fleet's gather rounds: when peers are ready, when payloads arrive, and when rounds are decided.

    launch = previous landing + (interval − τ) steps;   landing = max(launch + τ steps, decided) + codec
    a round closes when all payloads have arrived, or when a majority has arrived and the grace period is over
    (swarm/consensus/proposer.py, round_timers.py)

    exposed = max(0, exchange − hidden);   utilization u = compute / (compute + exposed)
    bandwidth for u = bits / (hidden + compute (1 / u − 1))

interval is the number of inner steps between two launches, τ the number between launch and landing (`Method.delay`),
and codec the duration of launching and landing. Of one round, exchange is the duration of the exchange, hidden the part
of it that overlaps inner steps, exposed the part that blocks them, compute the duration of the inner steps, and bits
the number of exchanged bits. Arrays with the suffix _P have one entry per peer.

A late peer does not delay the other peers. A peer that launches after the decision lands the round that it missed, and
immediately contributes its progress to the next round. It takes neither the τ steps between launch and landing of the
round that it missed, nor the interval − τ steps before the launch of the next. With up to 9 peers, requests do not
queue at the owners of payloads, and every transfer is simulated. With more peers, every link is modeled as a queue of
payloads, in the order in which they become ready. All links are identical and have the same queue, so 10,000 peers are
simulated quickly.
"""

from __future__ import annotations

import math

import numpy as np

from outerloop.plan.links import CONCURRENT_TRANSFERS, begin_s, commit_s, gather_messages, gather_s
from outerloop.plan.scenario import Fleet, Method, StepRate
from outerloop.plan.transfers import GatherSimulation

EXACT_PEERS = CONCURRENT_TRANSFERS + 1
ROUNDS, WARM_UP = 24, 4


def simulate(fleet: Fleet, method: Method, *, grace_s: float, absent: int = 0, seed: int = 0) -> StepRate:
    """Simulate many rounds and return the mean rate. `absent` is the number of expected peers that never respond."""
    rng = np.random.default_rng(seed)
    present = fleet.peers - absent
    landed_P, launch_P, behind_P = np.zeros(present), np.zeros(present), np.zeros(present, dtype=bool)
    start_s = counted = steps = 0.0
    for number in range(WARM_UP + ROUNDS):
        step_P = fleet.step_s * lognormal_factors(rng, fleet.spread, present)
        before_launch = float(1 - behind_P.mean()) * (method.interval - method.delay)
        launch_P = np.where(behind_P, launch_P + fleet.codec_s, landed_P + (method.interval - method.delay) * step_P)
        decided_s, late_P = decide(launch_P, fleet, method, grace_s=grace_s)
        behind_P = launch_P > decided_s
        landing_P = np.maximum(launch_P + method.delay * step_P, decided_s) + fleet.codec_s
        landed_P = np.where(behind_P, launch_P, landing_P)
        start_s = float(landed_P.mean()) if number == WARM_UP - 1 else start_s
        counted += float(1 - late_P.mean()) * (number >= WARM_UP)
        steps += (before_launch + float(1 - behind_P.mean()) * method.delay) * (number >= WARM_UP)
    round_s = float(landed_P.mean() - start_s) / ROUNDS
    exchange_s = gather_s(fleet.links, method.payload_bytes, fleet.peers)
    return split_stall(fleet, method, round_s, exchange_s, steps=steps / ROUNDS, met=counted / ROUNDS)


def split_stall(
    fleet: Fleet, method: Method, round_s: float, exchange_s: float, *, steps: float, met: float
) -> StepRate:
    """Split the time in which a round blocks the inner steps into exposed and waiting time.

    Exposed time is what would remain if all peers were ready at the same time. Waiting time is the rest. A simulated
    round that is shorter than the mean duration of its `steps` inner steps, because fast paces were drawn, is
    lengthened to this duration.
    """
    stall_s = max(0.0, round_s - steps * fleet.step_s)
    exposed = min(stall_s, exposed_s(exchange_s, method.delay * fleet.step_s) + fleet.codec_s)
    return StepRate(max(round_s, steps * fleet.step_s), steps, exposed, stall_s - exposed, met)


def lognormal_factors(rng: np.random.Generator, spread: float, count: int) -> np.ndarray:
    """Draw lognormal factors with mean 1. `spread` is the standard deviation of their logarithms."""
    return np.exp(spread * rng.standard_normal(count) - spread**2 / 2)


def decide(launch_P: np.ndarray, fleet: Fleet, method: Method, *, grace_s: float) -> tuple[float, np.ndarray]:
    """Return the time at which all peers have the decision and all included payloads, and a mask of the late peers.

    The time is infinite if too few peers for a majority are present. The payloads of late peers are left out.
    """
    if fleet.peers == 1:
        return float(launch_P[0]), np.zeros(1, dtype=bool)
    leader_P, last_P = arrivals(launch_P, fleet, method)
    in_order = np.sort(leader_P)
    majority = fleet.peers // 2 + 1
    if len(in_order) < majority:
        return math.inf, np.ones(len(in_order), dtype=bool)
    grace_end_s = in_order[majority - 1] + grace_s
    close_s = grace_end_s if len(in_order) < fleet.peers else min(in_order[-1], grace_end_s)
    late_P = leader_P > close_s
    return max(close_s, float(last_P[~late_P].max())) + commit_s(fleet.links), late_P


def arrivals(launch_P: np.ndarray, fleet: Fleet, method: Method) -> tuple[np.ndarray, np.ndarray]:
    """Return the times at which each peer's payload reaches the leader, and at which it has reached all peers.

    The leader is the first peer of the roster.
    """
    links, size = fleet.links, method.payload_bytes
    ready_P = launch_P + begin_s(links, size, fleet.peers)
    if len(launch_P) <= EXACT_PEERS:
        arrival_PP = GatherSimulation(
            ready_P, size, up=links.up, down=links.down, at_once=CONCURRENT_TRANSFERS
        ).arrivals()
        return arrival_PP[0], arrival_PP.max(axis=0)
    arrival_P = queued_arrivals(ready_P, size, fleet)
    return arrival_P, arrival_P


def queued_arrivals(ready_P: np.ndarray, size: float, fleet: Fleet) -> np.ndarray:
    """Return the time at which each payload has reached all peers, if every link is modeled as a queue.

    This is the later of two times: when the queue has moved past the payload, and when the uplink of the payload's
    owner has sent all copies. All payloads together occupy the queue for `gather_messages` times the transfer time of
    one payload in the slower direction.
    """
    order, index_P = np.argsort(ready_P, kind="stable"), np.arange(len(ready_P))
    payload_s = gather_messages(fleet.peers) * size / fleet.links.slower / len(ready_P)
    queue_end_P = np.maximum.accumulate(ready_P[order] - index_P * payload_s) + (index_P + 1) * payload_s
    arrival_P = np.empty_like(ready_P)
    arrival_P[order] = np.maximum(queue_end_P, ready_P[order] + (fleet.peers - 1) * size / fleet.links.up)
    return arrival_P


def exposed_s(exchange_s: float, hidden_s: float) -> float:
    """Return the seconds for which an exchange blocks the inner loop, if `hidden_s` of it overlap inner steps."""
    return max(0.0, exchange_s - hidden_s)


def utilization(compute_s: float, exposed_s: float) -> float:
    """Return the fraction of time spent in inner steps, 0 .. 1."""
    return compute_s / (compute_s + exposed_s)


def bandwidth_for(share: float, *, bits: float, compute_s: float, hidden_s: float) -> float:
    """Return the bits/s required for a utilization of `share`, if `bits` are exchanged per `compute_s` of inner steps.

    `hidden_s` is the time for which the exchange overlaps inner steps.
    """
    return bits / (hidden_s + compute_s * (1 / share - 1))
