"""Model the links of a run, and how long one exchange takes over equal links without other traffic.

    gather   n · bytes / min(up, down),   n = P − 1; for 10 or more peers n = 1.5 (P − 1), because requests queue
    pair     bytes / min(up, down)
    ring     2 (P − 1) messages of bytes / P;      tree   2 log2(P) messages of all bytes

Latency is counted for the messages that the code in swarm/ sends in sequence: each takes `latency_s`, one way. An idle
connection starts with 10 segments and doubles its window every round trip (RFC 6928); `ramp_s` is the time that this
costs.

P is the number of peers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GOODPUT = 0.80
"""Share of a link's capacity that payloads reach in a run. A single transfer reaches 0.94 to 0.96. If both directions
are full and several transfers share a link, TCP leaves it partly idle: plain sockets reach 0.64 to 0.92."""
HOST_BITS = 1.2e9
"""Throughput limit of a one-core host in each direction in bits/s, due to encryption and copying. Measured."""
CONCURRENT_TRANSFERS = 8
"""Number of concurrent transfers of a peer in each direction: swarm/transfer/bulk.py."""
QUEUEING = 1.5
"""Factor by which queueing lengthens a gather of 10 or more peers (see `gather_messages`)."""
DECIDE_S = 0.03
"""Seconds of disk writes and signatures for one decision. Measured with 8 peers on loopback: 5 to 30 ms."""
FIRST_WINDOW = 10 * 1460
"""Number of bytes that a connection sends before the first acknowledgement."""
BEGIN_TRIPS = 3
"""Number of messages until a payload's first byte reaches another peer: notification, request, first byte."""
COMMIT_TRIPS = 3
"""Number of messages of a commit: proposal, acceptance, decision."""
PAIR_TRIPS = 6
"""Number of messages of a pair: proposal, answer, request, first byte, receipt, confirmation (gossip/handshake.py)."""


@dataclass(frozen=True)
class Links:
    """The link of every peer: payload bytes/s up and down, without headers, and one-way latency in seconds."""

    up: float
    down: float
    latency_s: float = 0.0

    @property
    def slower(self) -> float:
        """Return the bytes/s of the slower direction."""
        return min(self.up, self.down)


def payload_links(up_bits: float, down_bits: float, latency_s: float, *, host_bits: float = HOST_BITS) -> Links:
    """Convert the nominal bits/s of a link to payload bytes/s, limited by the throughput of a host."""
    return Links(min(GOODPUT * up_bits, host_bits) / 8, min(GOODPUT * down_bits, host_bits) / 8, latency_s)


def ramp_s(links: Links, payload_bytes: float, *, transfers: int) -> float:
    """Return the seconds that TCP slow start costs each of `transfers` connections that share a link.

    2 L log2(w / w0 + 1) − w / rate,   w = min(payload, rate · 2 L)

    L is the latency, w0 the first window, and w the number of bytes sent until the link is full.
    """
    rate, round_trip_s = links.slower / max(1, transfers), 2 * links.latency_s
    window = min(payload_bytes, rate * round_trip_s)
    return max(0.0, round_trip_s * math.log2(window / FIRST_WINDOW + 1) - window / rate)


def gather_messages(peers: int) -> float:
    """Return how long a gather occupies a link, as a multiple of the time that the transfer of one payload takes.

    All peers are assumed to be ready at the same time.

    An owner serves 8 peers at a time. A peer that queues at an owner occupies one of its own 8 slots, so with more than
    9 peers some links are idle while others are full. In simulations, the result is 1.2 to 1.3 times P − 1 if peers
    request payloads in random orders, and 1.5 to 1.95 times P − 1 if all request them in the same order (transfers.py).
    In a measurement with ten hosts at 2 Mbit/s on a busy machine, it was 1.4 times P − 1.
    """
    others = peers - 1
    return others if others <= CONCURRENT_TRANSFERS else QUEUEING * others


def gather_s(links: Links, payload_bytes: float, peers: int) -> float:
    """Return the seconds from the time when all payloads are ready until all peers know the decision."""
    if peers == 1:
        return 0.0
    moving_s = gather_messages(peers) * payload_bytes / links.slower
    return moving_s + begin_s(links, payload_bytes, peers) + commit_s(links)


def begin_s(links: Links, payload_bytes: float, peers: int) -> float:
    """Return the seconds lost before the transfers of a gather reach full speed."""
    return BEGIN_TRIPS * links.latency_s + ramp_s(links, payload_bytes, transfers=min(peers - 1, CONCURRENT_TRANSFERS))


def commit_s(links: Links) -> float:
    """Return the seconds from the time when all peers have all payloads until all peers know the decision."""
    return COMMIT_TRIPS * links.latency_s + DECIDE_S


def pair_s(links: Links, payload_bytes: float) -> float:
    """Return the seconds that a gossip pair takes to exchange both payloads, from the proposal to the confirmation."""
    return payload_bytes / links.slower + PAIR_TRIPS * links.latency_s + ramp_s(links, payload_bytes, transfers=1)


def ring_s(links: Links, payload_bytes: float, peers: int) -> float:
    """Return the duration in seconds of a ring all-reduce: reduce-scatter and all-gather, P − 1 messages each.

    It is for comparison only; the swarm does not use it.
    """
    return 2 * (peers - 1) * (payload_bytes / peers / links.slower + links.latency_s)


def tree_s(links: Links, payload_bytes: float, peers: int) -> float:
    """Return the duration in seconds of a tree all-reduce, log2(P) levels up and down: 2 log2(P) · time of a message.

    It is for comparison only (NoLoCo, arXiv 2506.10911).
    """
    return 2 * math.log2(peers) * (payload_bytes / links.slower + links.latency_s)
