"""The way to running peers, measured for the planner."""

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
    """The slowest of what these peers measure, each probed as `outerloop doctor` does. Raises UserError."""
    with visit(observer=False) as own:
        found = [asked(own, address) for address in addresses]
    ups, downs = [one.up for one in found if one.up], [one.down for one in found if one.down]
    if not ups or not downs:
        raise UserError("--probe: no peer granted a transfer, others have just asked: try again in a minute")
    return Links(min(ups), min(downs), max(one.round_trip_s for one in found) / 2)


def asked(own: ObserverNode, address: str) -> Measured:
    """One peer's. Raises UserError."""
    try:
        peer_id = own.call(own.dial(address), timeout_s=2 * OPEN_S)
        return own.call(measure(own, peer_id), timeout_s=2 * MEASURE_S)
    except TurnedAway as error:
        raise UserError(f"--probe {address} answers nobody but its exchange.allow: type --up, --down") from error
    except (Unreachable, BrokenStream, TimeoutError) as error:
        why = (str(error).splitlines() or ["no answer in time"])[-1].lstrip(" *")
        raise UserError(f"--probe {address} cannot be measured ({why}): type outerloop doctor --peer ADDR") from error
