"""What one method comes to in one fleet: seconds a round, utilization, bytes a day, days to the last token.

    failures   a round is one with an absent peer with probability  q = 1 − exp(− λ P · 2 rounds)
               round = calm + q (with one absent − calm + leader's patience / P)
               of P peers P / (1 + λ · time down) are there
    tokens     wall clock = tokens / (peers there · tokens a step · steps a second)

λ: failures of a peer per second. A peer that fails is counted on for two more rounds (exchange.absent_rounds), each of
which waits out the grace for it; it is started anew after a minute and downloads the state. In gossip nobody waits.
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
"""exchange.grace_s, deadline_s, absent_rounds and round_timeout_s as they come."""
LEAD_S = 5.0
"""The patience with a leader that is gone: swarm/timeouts.py."""
RESTART_S = 60.0
"""Until a peer that failed is started again. Assumed."""
DAY_S = 86400.0


@dataclass(frozen=True)
class Outlook:
    """`pace` is of a round of one fragment, failures included. `present`: share of the peers that are there.

    `settings`: what has to be typed besides, because the defaults end such rounds before all their bytes are there.
    """

    fleet: Fleet
    method: Method
    pace: StepRate
    present: float
    settings: list[str]

    @property
    def round_s(self) -> float:
        """Seconds of H inner steps with all their exchanges."""
        return self.pace.round_s * self.method.fragments

    @property
    def exposed_s(self) -> float:
        """Of these: exchanges, launching and landing that the inner steps wait for."""
        return self.pace.exposed_s * self.method.fragments

    @property
    def waiting_s(self) -> float:
        """Of these: waiting for slower or absent peers, or for a partner."""
        return self.pace.waiting_s * self.method.fragments

    @property
    def utilization(self) -> float:
        """Share of the time that inner steps take."""
        return self.method.sync_every * self.fleet.step_s / self.round_s

    @property
    def sent_bytes_per_day(self) -> float:
        """Payload that one peer sends, every copy counted; it receives as much."""
        copies = self.fleet.peers - 1 if self.method.exchange == "gather" else self.pace.met
        return copies * self.method.payload_bytes / self.pace.round_s * DAY_S

    def tokens_per_s(self, tokens_per_step: float) -> float:
        """Of all peers together; `tokens_per_step` of one."""
        return self.fleet.peers * self.present * tokens_per_step * self.method.sync_every / self.round_s


def outlook(fleet: Fleet, method: Method) -> Outlook:
    """Simulate a method in a fleet."""
    settle_s = settles_s(fleet, method)
    if method.exchange == "gossip":
        calm = gossip.Pool(fleet, method).run()
    else:
        calm = gather.simulate(fleet, method, grace_s=GRACE_S + settle_s)
    per_s, down_s = fleet.failures_per_hour / 3600, RESTART_S + method.state_bytes / fleet.links.down
    pace = with_failures(fleet, method, calm, grace_s=GRACE_S + settle_s, per_s=per_s, down_s=down_s)
    return Outlook(fleet, method, pace, 1 / (1 + per_s * down_s), list(to_type(fleet, method, settle_s)))


def with_failures(
    fleet: Fleet, method: Method, calm: StepRate, *, grace_s: float, per_s: float, down_s: float
) -> StepRate:
    """The mean over rounds with and without an absent peer. Without a majority a run waits for it to come back."""
    if method.exchange == "gossip" or not per_s or fleet.peers < 2:
        return calm
    longer_s, rounds = down_s, 1
    if fleet.peers > 2:
        rounds = ABSENT_ROUNDS
        absent = gather.simulate(fleet, method, grace_s=grace_s, absent=1)
        longer_s = min(down_s, max(0.0, absent.round_s - calm.round_s) + LEAD_S / fleet.peers)
    share = 1 - math.exp(-per_s * fleet.peers * rounds * calm.round_s)
    return replace(calm, round_s=calm.round_s + share * longer_s, waiting_s=calm.waiting_s + share * longer_s)


def settles_s(fleet: Fleet, method: Method) -> float:
    """From a majority of the payloads to the last one at the leader, everybody ready at once: a grace must be longer.

    Queues hand out payloads one after the other, and the defaults would close the gather with the first of them.
    """
    if method.exchange == "gossip" or fleet.peers < 2:
        return 0.0
    there_P = np.sort(gather.arrivals(np.zeros(fleet.peers), fleet, method)[0])
    return float(there_P[-1] - there_P[fleet.peers // 2])


def exchange_s(fleet: Fleet, method: Method) -> float:
    """How long one exchange takes when all peers are ready at once."""
    if method.exchange == "gossip":
        return pair_s(fleet.links, method.payload_bytes)
    return gather_s(fleet.links, method.payload_bytes, fleet.peers)


def to_type(fleet: Fleet, method: Method, settle_s: float) -> Iterator[str]:
    """Settings that an exchange of this length needs."""
    took_s = exchange_s(fleet, method)
    if settle_s > GRACE_S:
        yield f"exchange.grace_s={math.ceil(GRACE_S + settle_s)}"
    if took_s > DEADLINE_S / 2:
        yield f"exchange.deadline_s={math.ceil(2 * took_s)}"
    if took_s > ROUND_S / 2:
        yield f"round_timeout_s={math.ceil(4 * took_s)}"
