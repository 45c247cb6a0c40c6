"""Measure the links to running peers, as input for `outerloop plan`."""

from __future__ import annotations

from collections.abc import Sequence

from outerloop.plan.links import Links
from outerloop.swarm.p2p.framing import BrokenStream, TurnedAway
from outerloop.swarm.p2p.observer import ObserverNode, visit
from outerloop.swarm.p2p.probe import Measured, measure
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import MEASURE_S, OPEN_S
from outerloop.types import UserError


def probe_links(addresses: Sequence[str]) -> Links:
    """Probe each address as `outerloop doctor` does, and combine the results into one link.

    The link has the lowest upload and download rates that were measured. Its latency is half of the longest round-trip
    time. Raises UserError if a peer cannot be measured, or if no peer agreed to transfer data.
    """
    with visit(observer=False) as node:
        measured = [probe_peer(node, address) for address in addresses]
    up_rates, down_rates = [link.up for link in measured if link.up], [link.down for link in measured if link.down]
    if not up_rates or not down_rates:
        raise UserError(
            "--probe: no peer agreed to transfer data, because all were probed too often: try again in a minute"
        )
    return Links(min(up_rates), min(down_rates), max(link.round_trip_s for link in measured) / 2)


def probe_peer(node: ObserverNode, address: str) -> Measured:
    """Dial and probe one peer. Raises UserError if either fails."""
    try:
        peer_id = node.call(node.dial(address), timeout_s=2 * OPEN_S)
        return node.call(measure(node, peer_id), timeout_s=2 * MEASURE_S)
    except TurnedAway as error:
        raise UserError(
            f"--probe: the peer at {address} answers only the peers in its exchange.allow: pass --up and --down instead"
        ) from error
    except (Unreachable, BrokenStream, TimeoutError) as error:
        reason = (str(error).splitlines() or ["no answer in time"])[-1].lstrip(" *")
        raise UserError(f"--probe {address} cannot be measured ({reason}): run outerloop doctor --peer ADDR") from error
