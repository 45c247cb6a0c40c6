"""Measure the links to running peers for the planner."""

from __future__ import annotations

from collections.abc import Sequence

from outerloop.plan.links import Links
from outerloop.swarm.p2p.framing import BrokenStream, TurnedAway
from outerloop.swarm.p2p.observer import ObserverNode, visit
from outerloop.swarm.p2p.probe import Measured, measure
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import MEASURE_S, OPEN_S
from outerloop.types import UserError


def probed(addresses: Sequence[str]) -> Links:
    """Probe each address as `outerloop doctor` does. Return the lowest rates and half of the longest round trip.

    Raises UserError if a peer cannot be measured, or if none of them granted a transfer.
    """
    with visit(observer=False) as own:
        found = [asked(own, address) for address in addresses]
    ups, downs = [one.up for one in found if one.up], [one.down for one in found if one.down]
    if not ups or not downs:
        raise UserError("--probe: no peer granted a transfer, they were probed too often: try again in a minute")
    return Links(min(ups), min(downs), max(one.round_trip_s for one in found) / 2)


def asked(own: ObserverNode, address: str) -> Measured:
    """Dial and probe one peer. Raises UserError if that fails."""
    try:
        peer_id = own.call(own.dial(address), timeout_s=2 * OPEN_S)
        return own.call(measure(own, peer_id), timeout_s=2 * MEASURE_S)
    except TurnedAway as error:
        raise UserError(f"--probe {address} answers only its exchange.allow: pass --up and --down") from error
    except (Unreachable, BrokenStream, TimeoutError) as error:
        why = (str(error).splitlines() or ["no answer in time"])[-1].lstrip(" *")
        raise UserError(f"--probe {address} cannot be measured ({why}): run outerloop doctor --peer ADDR") from error
