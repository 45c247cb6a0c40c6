"""Links, and how long one exchange takes over equal ones that nothing else uses.

    gather   n · bytes / min(up, down),   n = P − 1, from 10 peers on 1.5 (P − 1): pullers queue
    pair     bytes / min(up, down)
    ring     2 (P − 1) messages of bytes / P;      tree   2 log2(P) messages of all bytes

Latencies are those of the messages that really go one after the other (swarm/): each is one way, `latency_s`. A
connection that was idle begins with 10 segments and doubles every round trip (RFC 6928), which `ramp_s` adds.

P peers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GOODPUT = 0.80
"""Payload bytes of what a link carries in a run. One transfer alone gets .94 to .96; where both directions are full and
several transfers share a link, TCP leaves it idle before the last one ends: plain sockets reach .64 to .92."""
HOST_BITS = 1.2e9
"""What a host carries each way, bits/s, however fast its link: encryption and copies, two hosts on a core each."""
AT_ONCE = 8
"""Transfers of a peer each way: swarm/transfer/bulk.py."""
QUEUEING = 1.5
"""See `gather_messages`."""
DECIDE_S = 0.03
"""Disk and signatures of one agreement, 8 peers on loopback: 5 to 30 ms."""
FIRST_WINDOW = 10 * 1460
"""Bytes that a connection sends before anything was acknowledged."""
BEGIN_TRIPS = 3
"""Messages from a payload that is ready to its first byte elsewhere: it is told, it is asked for, it comes."""
COMMIT_TRIPS = 3
"""Proposal, acceptance, decision."""
PAIR_TRIPS = 6
"""Proposal, answer, request, first byte; both have it, it counts (swarm/gossip/handshake.py)."""


@dataclass(frozen=True)
class Links:
    """Every peer's link: payload bytes/s up and down (what headers take is off already), one-way latency in seconds."""

    up: float
    down: float
    latency_s: float = 0.0

    @property
    def slower(self) -> float:
        """Bytes/s of the narrower direction."""
        return min(self.up, self.down)


def links_of(up_bits: float, down_bits: float, latency_s: float, *, host_bits: float = HOST_BITS) -> Links:
    """Bits/s as links are sold -> payload bytes/s."""
    return Links(min(GOODPUT * up_bits, host_bits) / 8, min(GOODPUT * down_bits, host_bits) / 8, latency_s)


def ramp_s(links: Links, payload_bytes: float, *, transfers: int) -> float:
    """What a connection loses while it speeds up, one of `transfers` that share a link.

    2 L log2(w / w0 + 1) − w / rate,   w = min(payload, rate · 2 L):  the bytes sent until the link is full
    """
    rate, round_trip_s = links.slower / max(1, transfers), 2 * links.latency_s
    window = min(payload_bytes, rate * round_trip_s)
    return max(0.0, round_trip_s * math.log2(window / FIRST_WINDOW + 1) - window / rate)


def gather_messages(peers: int) -> float:
    """Payload times that a gather keeps a link for when all are ready at once.

    An owner serves 8 at once, and who queues at one holds one of its own 8 places, so beyond 9 peers some links are
    idle while others are full. Simulated: 1.2 to 1.3 (P − 1) when peers ask in random orders, 1.5 to 1.95 when all ask
    in one (transfers.py). Ten hosts at 2 Mbit/s on a busy machine: 1.4.
    """
    others = peers - 1
    return others if others <= AT_ONCE else QUEUEING * others


def gather_s(links: Links, payload_bytes: float, peers: int) -> float:
    """From the last payload that is ready to the decision, everybody ready at once."""
    if peers == 1:
        return 0.0
    moving_s = gather_messages(peers) * payload_bytes / links.slower
    return moving_s + begin_s(links, payload_bytes, peers) + commit_s(links)


def begin_s(links: Links, payload_bytes: float, peers: int) -> float:
    """Before the bytes of a gather flow at full speed."""
    return BEGIN_TRIPS * links.latency_s + ramp_s(links, payload_bytes, transfers=min(peers - 1, AT_ONCE))


def commit_s(links: Links) -> float:
    """From payloads that lie everywhere to a decision that everybody knows."""
    return COMMIT_TRIPS * links.latency_s + DECIDE_S


def pair_s(links: Links, payload_bytes: float) -> float:
    """Both payloads of a gossip pair, from the proposal to the last word."""
    return payload_bytes / links.slower + PAIR_TRIPS * links.latency_s + ramp_s(links, payload_bytes, transfers=1)


def ring_s(links: Links, payload_bytes: float, peers: int) -> float:
    """A ring all-reduce: reduce-scatter and all-gather, P − 1 messages each. For comparison: the swarm has none."""
    return 2 * (peers - 1) * (payload_bytes / peers / links.slower + links.latency_s)


def tree_s(links: Links, payload_bytes: float, peers: int) -> float:
    """A tree all-reduce: up and down log2(P) levels. For comparison (NoLoCo, arXiv 2506.10911): 2 t log2(P)."""
    return 2 * math.log2(peers) * (payload_bytes / links.slower + links.latency_s)


def slower_of_two(mu: float, sigma: float) -> float:
    """E max of two lognormal message times: (1 + erf(σ / 2)) exp(μ + σ² / 2). NoLoCo, arXiv 2506.10911."""
    return (1 + math.erf(sigma / 2)) * math.exp(mu + sigma**2 / 2)
