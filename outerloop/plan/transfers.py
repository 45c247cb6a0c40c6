"""Simulate transfers between peers event by event. Active transfers share every uplink and downlink fairly.

Rates are max-min fair: the most contended link gives each of its transfers an equal share, which is deducted from the
other links of these transfers. The same step is repeated with the remaining links until every transfer has a rate.

A peer takes part in at most `at_once` transfers in each direction (swarm/transfer/bulk.py). Further requests queue at
the owner of the payload, and each occupies a slot of the peer that made it. So if all peers request payloads in the
same order, some links are idle.

Suffixes of array names: F transfers, P peers, L links.
"""

from __future__ import annotations

from collections import deque

import numpy as np

EPSILON = 1e-9


def fair_rates(sources_F: np.ndarray, targets_F: np.ndarray, up_P: np.ndarray, down_P: np.ndarray) -> np.ndarray:
    """Return the max-min fair rate of each transfer in bytes/s.

    Transfer i runs from peer `sources_F[i]` to peer `targets_F[i]`. `up_P` and `down_P` are the peers' link rates.
    """
    peers = len(up_P)
    links_2F = np.stack([sources_F, targets_F + peers])
    left_L = np.concatenate([up_P, down_P]).astype(float)
    rate_F, open_F = np.zeros(len(sources_F)), np.ones(len(sources_F), dtype=bool)
    while open_F.any():
        count_L = np.bincount(links_2F[:, open_F].ravel(), minlength=2 * peers)
        share_L = np.divide(left_L, count_L, out=np.full(2 * peers, np.inf), where=count_L > 0)
        bottleneck_L = share_L <= share_L.min() * (1 + EPSILON)
        done_F = open_F & bottleneck_L[links_2F].any(axis=0)
        rate_F[done_F] = share_L.min()
        np.subtract.at(left_L, links_2F[:, done_F].ravel(), share_L.min())
        left_L, open_F = left_L.clip(min=0.0), open_F & ~done_F
    return rate_F


class GatherSimulation:
    """A simulated gather: every peer pulls all other payloads from their owners, in the order they become ready.

    Args:
        ready_s: time in seconds at which each peer's payload is ready; ties are ordered by peer number.
        payload_bytes: size of each payload.
        up, down: bytes/s of every peer's link.
        at_once: maximum number of concurrent transfers of one peer in each direction.
    """

    def __init__(self, ready_s: np.ndarray, payload_bytes: float, *, up: float, down: float, at_once: int) -> None:
        self.ready_s, self.bytes, self.at_once = ready_s.tolist(), payload_bytes, at_once
        peers = len(self.ready_s)
        self.up_P, self.down_P = np.full(peers, up), np.full(peers, down)
        order = np.argsort(ready_s, kind="stable").tolist()
        self.wanted = [deque(owner for owner in order if owner != puller) for puller in range(peers)]
        self.free_slots = [at_once] * peers  # of each puller; a queued request also occupies a slot
        self.queues: list[deque[int]] = [deque() for _ in range(peers)]
        self.active_uploads = [0] * peers
        self.active: list[tuple[int, int]] = []
        self.left_F = np.zeros(0)

    def arrivals(self) -> np.ndarray:
        """Return a matrix of the times at which each payload (column) reaches each peer (row), in seconds.

        The diagonal is `ready_s`.
        """
        arrival_PP = np.diag(self.ready_s)
        starts, now_s = sorted(set(self.ready_s), reverse=True), 0.0
        while starts or self.active:
            next_s, rate_F = self.next_end(now_s)
            if starts and starts[-1] <= next_s:
                next_s = starts.pop()
            self.left_F = self.left_F - (next_s - now_s) * rate_F
            now_s = next_s
            for owner, puller in self.remove_finished(now_s, rate_F):
                arrival_PP[puller, owner] = now_s
            self.start_transfers(now_s)
        return arrival_PP

    def next_end(self, now_s: float) -> tuple[float, np.ndarray]:
        """Return the time at which the next transfer ends if no other transfer starts before, and all current rates."""
        if not self.active:
            return np.inf, np.zeros(0)
        sources_F, targets_F = np.array(self.active).T
        rate_F = fair_rates(sources_F, targets_F, self.up_P, self.down_P)
        return now_s + float((self.left_F / rate_F).min()), rate_F

    def start_transfers(self, now_s: float) -> None:
        """Let peers with free slots request the next ready payloads, and let owners start queued transfers."""
        for puller, pending in enumerate(self.wanted):
            while pending and self.free_slots[puller] and self.ready_s[pending[0]] <= now_s:
                self.free_slots[puller] -= 1
                self.queues[pending.popleft()].append(puller)
        started = [(owner, puller) for owner in range(len(self.queues)) for puller in self.pop_served(owner)]
        self.active += started
        self.left_F = np.concatenate([self.left_F, np.full(len(started), float(self.bytes))])

    def pop_served(self, owner: int) -> list[int]:
        """Remove from an owner's queue the pullers that it can serve now, and return them."""
        count = min(self.at_once - self.active_uploads[owner], len(self.queues[owner]))
        self.active_uploads[owner] += count
        return [self.queues[owner].popleft() for _ in range(count)]

    def remove_finished(self, now_s: float, rate_F: np.ndarray) -> list[tuple[int, int]]:
        """Remove the finished transfers, and return the (owner, puller) pair of each.

        A transfer also counts as finished if its remaining time is below the float64 resolution of the clock.
        """
        over_F = (self.left_F <= self.bytes * EPSILON) | (now_s + self.left_F / rate_F <= now_s)
        ended = [pair for pair, over in zip(self.active, over_F, strict=True) if over]
        self.active = [pair for pair, over in zip(self.active, over_F, strict=True) if not over]
        self.left_F = self.left_F[~over_F]
        for owner, puller in ended:
            self.active_uploads[owner] -= 1
            self.free_slots[puller] += 1
        return ended
