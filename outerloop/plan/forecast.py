"""Forecast one method on one fleet: seconds per round, utilization, bytes per day, and time to process all tokens.

    failures   a round has an absent peer with probability  q = 1 − exp(− λ P · duration of 2 rounds)
               round = calm + q (with one absent − calm + leader timeout / P)
               of P peers, P / (1 + λ · downtime) are present; with two, all rounds wait until both are
    tokens     wall clock = tokens / (peers present · tokens per step · steps per second)

P is the number of peers, λ the failure rate of one peer per second, and downtime the seconds for which a failed peer is
absent. Three durations of a round occur: "round" (the mean), "calm" (without failures) and "with one absent" (peer). A
failed peer is still expected in the next two rounds (exchange.absent_rounds), each of which waits the whole grace
period for it. The peer restarts after a minute and downloads the state. In gossip, no peer waits for an absent one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from outerloop.plan import gather, gossip
from outerloop.plan.links import gather_s, pair_s
from outerloop.plan.scenario import Fleet, Method, StepRate

GRACE_S, DEADLINE_S, ABSENT_ROUNDS, ROUND_S = 3.0, 120.0, 2, 600.0
"""Defaults of exchange.grace_s, exchange.deadline_s, exchange.absent_rounds and round_timeout_s."""
LEAD_S = 5.0
"""Seconds until peers replace a leader that does not respond (swarm/timeouts.py)."""
RESTART_S = 60.0
"""Seconds until a failed peer restarts: an assumption, not a measurement."""
DAY_S = 86400.0


@dataclass(frozen=True)
class Forecast:
    """The forecast for one method in one fleet.

    rate: the result of the simulation, including failures. Its rounds exchange one fragment each.
    present: mean fraction of peers that are present during rounds.
    overrides: configuration overrides that the method needs, also where the default time limits are too short.
    """

    fleet: Fleet
    method: Method
    rate: StepRate
    present: float
    overrides: list[str]

    @property
    def rounds(self) -> float:
        """Return the number of simulated rounds that a peer needs for `sync_every` inner steps.

        Each round exchanges one fragment. The number exceeds that of the fragments if peers are late for rounds.
        """
        return self.method.sync_every / self.rate.steps

    @property
    def round_s(self) -> float:
        """Return the duration in seconds of `sync_every` inner steps with all their exchanges."""
        return self.rate.round_s * self.rounds

    @property
    def exposed_s(self) -> float:
        """Return the part of `round_s` during which exchanges, launches and landings block the inner steps."""
        return self.rate.exposed_s * self.rounds

    @property
    def waiting_s(self) -> float:
        """Return the part of `round_s` in which a peer waits for slower or absent peers, or for a partner."""
        return self.rate.waiting_s * self.rounds

    @property
    def utilization(self) -> float:
        """Return the fraction of time spent in inner steps."""
        return self.method.sync_every * self.fleet.step_s / self.round_s

    @property
    def sent_bytes_per_day(self) -> float:
        """Return the payload bytes that one peer sends per day, counting every copy. It receives the same number."""
        return self.sent_bytes_per_round / self.rate.round_s * DAY_S

    @property
    def sent_bytes_per_round(self) -> float:
        """Return the payload bytes that one peer sends in one simulated round, counting every copy."""
        copies = self.fleet.peers - 1 if self.method.exchange == "gather" else self.rate.met
        return copies * self.method.payload_bytes

    def tokens_per_s(self, tokens_per_step: float) -> float:
        """Return the tokens per second of all peers combined, given the tokens per inner step of one peer."""
        return self.fleet.peers * self.present * tokens_per_step * self.method.sync_every / self.round_s


def forecast(fleet: Fleet, method: Method) -> Forecast:
    """Simulate a method on a fleet and return the forecast. A single peer has the mean pace in every round."""
    fleet = fleet if fleet.peers > 1 else replace(fleet, spread=0.0)
    spread_s = arrival_spread_s(fleet, method)
    if method.exchange == "gossip":
        without_failures = gossip.GossipSimulation(fleet, method).run()
    else:
        without_failures = gather.simulate(fleet, method, grace_s=GRACE_S + spread_s)
    per_s, down_s = fleet.failures_per_hour / 3600, RESTART_S + method.state_bytes / fleet.links.down
    rate = with_failures(fleet, method, without_failures, grace_s=GRACE_S + spread_s, per_s=per_s, down_s=down_s)
    present = 1.0 if waits_for_both(fleet, method) else 1 / (1 + per_s * down_s)
    overrides = [*method.overrides, *needed_overrides(fleet, method, spread_s)]
    return Forecast(fleet, method, rate, present, overrides)


def waits_for_both(fleet: Fleet, method: Method) -> bool:
    """Return whether rounds wait for a failed peer: a gather of two peers has no majority without it."""
    return fleet.peers == 2 and method.exchange == "gather"


def with_failures(
    fleet: Fleet, method: Method, without_failures: StepRate, *, grace_s: float, per_s: float, down_s: float
) -> StepRate:
    """Return the mean step rate over rounds with and without an absent peer.

    Args:
        without_failures: the result of the simulation without failures.
        grace_s: length of the grace period in seconds.
        per_s: failure rate of one peer, per second.
        down_s: seconds for which a failed peer is absent.
    """
    if method.exchange == "gossip" or not per_s or fleet.peers < 2:
        return without_failures
    longer_s, rounds = down_s, 1
    if not waits_for_both(fleet, method):
        rounds = ABSENT_ROUNDS
        absent = gather.simulate(fleet, method, grace_s=grace_s, absent=1)
        longer_s = min(down_s, max(0.0, absent.stall_s - without_failures.stall_s) + LEAD_S / fleet.peers)
    share = 1 - math.exp(-per_s * fleet.peers * rounds * without_failures.round_s)
    return replace(
        without_failures,
        round_s=without_failures.round_s + share * longer_s,
        waiting_s=without_failures.waiting_s + share * longer_s,
    )


def arrival_spread_s(fleet: Fleet, method: Method) -> float:
    """Return the seconds from the arrival of a majority of the payloads at the leader to the arrival of the last one.

    All peers are assumed to be ready at the same time. Because transfers queue, the grace period must be longer than
    this spread: with the default grace period, a gather could close before the last payload arrives.
    """
    if method.exchange == "gossip" or fleet.peers < 2:
        return 0.0
    arrival_P = np.sort(gather.arrivals(np.zeros(fleet.peers), fleet, method)[0])
    return float(arrival_P[-1] - arrival_P[fleet.peers // 2])


def exchange_s(fleet: Fleet, method: Method) -> float:
    """Return the seconds that one exchange takes when all peers are ready at the same time: none with one peer."""
    if fleet.peers < 2:
        return 0.0
    if method.exchange == "gossip":
        return pair_s(fleet.links, method.payload_bytes)
    return gather_s(fleet.links, method.payload_bytes, fleet.peers)


def needed_overrides(fleet: Fleet, method: Method, settle_s: float) -> Iterator[str]:
    """Yield the overrides (key=value) that slow exchanges need. `settle_s` is the result of `arrival_spread_s`."""
    duration_s = exchange_s(fleet, method)
    if settle_s > GRACE_S:
        yield f"exchange.grace_s={math.ceil(GRACE_S + settle_s)}"
    if duration_s > DEADLINE_S / 2:
        yield f"exchange.deadline_s={math.ceil(2 * duration_s)}"
    if duration_s > ROUND_S / 2:
        yield f"round_timeout_s={math.ceil(4 * duration_s)}"
