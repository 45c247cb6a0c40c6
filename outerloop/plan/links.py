"""Model the links of a run, and how long one exchange takes over equal links without other traffic.

    gather   n · bytes / min(up, down),   n = P − 1; for 10 or more peers n = 1.5 (P − 1), because requests queue
    pair     bytes / min(up, down)
    ring     2 (P − 1) messages of bytes / P;      tree   2 log2(P) messages of all bytes

P is the number of peers, `bytes` the size of a payload; up and down are the rates of a link. Each message that swarm/
sends in sequence adds one one-way latency (`latency_s`). TCP on an idle connection starts with a window of 10 segments,
which doubles every round trip (RFC 6928); `ramp_s` returns the resulting delay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GOODPUT = 0.80
"""Fraction of a link's capacity that payload transfers achieve in a run.

A single transfer achieves 0.94 to 0.96. If both directions are full and several transfers share a link, TCP leaves part
of it idle; plain sockets then achieve 0.64 to 0.92.
"""
HOST_BITS = 1.2e9
"""Measured throughput limit of a one-core host in bits/s per direction, due to encryption and copying."""
CONCURRENT_TRANSFERS = 8
"""Maximum number of concurrent transfers of one peer in each direction (swarm/transfer/bulk.py)."""
QUEUEING = 1.5
"""Factor by which queueing slows down a gather of 10 or more peers (see `gather_messages`)."""
DECIDE_S = 0.03
"""Seconds of disk writes and signatures per decision. With 8 peers on loopback, 5 to 30 ms were measured."""
FIRST_WINDOW = 10 * 1460
"""Number of bytes that a connection sends before the first acknowledgement."""
BEGIN_TRIPS = 3
"""Number of sequential messages until a payload's first byte reaches a peer: notification, request, first byte."""
COMMIT_TRIPS = 3
"""Number of sequential messages in a commit: proposal, acceptance, decision."""
PAIR_TRIPS = 6
"""Number of sequential messages in a pair's exchange: proposal, answer, request, first byte, receipt, confirmation.

See swarm/gossip/handshake.py.
"""


@dataclass(frozen=True)
class Links:
    """The link that every peer has: payload bytes/s up and down, without headers, and one-way latency in seconds."""

    up: float
    down: float
    latency_s: float = 0.0

    @property
    def slower(self) -> float:
        """Return the bytes/s of the slower direction."""
        return min(self.up, self.down)


def payload_links(up_bits: float, down_bits: float, latency_s: float, *, host_bits: float = HOST_BITS) -> Links:
    """Convert a link's nominal bits/s to payload bytes/s. `host_bits`: the host's own limit in bits/s per direction."""
    return Links(min(GOODPUT * up_bits, host_bits) / 8, min(GOODPUT * down_bits, host_bits) / 8, latency_s)


def ramp_s(links: Links, payload_bytes: float, *, transfers: int) -> float:
    """Return the seconds that TCP slow start costs each of `transfers` connections that share a link.

    2 L log2(w / w0 + 1) − w / rate,   w = min(payload, rate · 2 L)

    L is the one-way latency in seconds, rate one connection's share of the link in bytes/s, w0 the initial window in
    bytes, and w the window at which the link is full, or the whole payload if that is smaller.
    """
    rate, round_trip_s = links.slower / max(1, transfers), 2 * links.latency_s
    window = min(payload_bytes, rate * round_trip_s)
    return max(0.0, round_trip_s * math.log2(window / FIRST_WINDOW + 1) - window / rate)


def gather_messages(peers: int) -> float:
    """Return how long a gather occupies a link, as a multiple of the transfer time of one payload.

    All peers are assumed to be ready at the same time. With `peers` = P, the result is P − 1 if no requests queue.

    The owner of a payload serves 8 peers at a time. A peer that queues at an owner occupies one of its own 8 slots, so
    with more than 9 peers some links are idle while others are full. In simulations (transfers.py), the result is 1.2
    to 1.3 times P − 1 if each peer requests payloads in random order, and 1.5 to 1.95 times P − 1 if all peers request
    them in the same order. In a measurement with ten hosts at 2 Mbit/s on a busy machine, it was 1.4 times P − 1.
    """
    others = peers - 1
    return others if others <= CONCURRENT_TRANSFERS else QUEUEING * others


def gather_s(links: Links, payload_bytes: float, peers: int) -> float:
    """Return the seconds of a gather, from all payloads being ready to all peers knowing the decision."""
    if peers == 1:
        return 0.0
    moving_s = gather_messages(peers) * payload_bytes / links.slower
    return moving_s + begin_s(links, payload_bytes, peers) + commit_s(links)


def begin_s(links: Links, payload_bytes: float, peers: int) -> float:
    """Return the seconds lost before a gather's transfers reach full speed."""
    return BEGIN_TRIPS * links.latency_s + ramp_s(links, payload_bytes, transfers=min(peers - 1, CONCURRENT_TRANSFERS))


def commit_s(links: Links) -> float:
    """Return the seconds of a commit, from all peers having all payloads to all peers knowing the decision."""
    return COMMIT_TRIPS * links.latency_s + DECIDE_S


def pair_s(links: Links, payload_bytes: float) -> float:
    """Return the seconds that a gossip pair takes to exchange payloads, from the proposal to the confirmation."""
    return payload_bytes / links.slower + PAIR_TRIPS * links.latency_s + ramp_s(links, payload_bytes, transfers=1)


def ring_s(links: Links, payload_bytes: float, peers: int) -> float:
    """Return the seconds of a ring all-reduce: a reduce-scatter and an all-gather of peers − 1 messages each.

    This is for comparison only; the swarm does not use a ring.
    """
    return 2 * (peers - 1) * (payload_bytes / peers / links.slower + links.latency_s)


def tree_s(links: Links, payload_bytes: float, peers: int) -> float:
    """Return the seconds of a tree all-reduce: one message up and one down on each of log2(peers) levels.

    This is for comparison only (NoLoCo, arXiv 2506.10911).
    """
    return 2 * math.log2(peers) * (payload_bytes / links.slower + links.latency_s)
