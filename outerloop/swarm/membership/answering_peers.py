"""Find out which remembered peers of a run answer, so that a peer that restarts joins them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from outerloop.swarm.membership.known_addresses import addresses_file, read_addresses
from outerloop.swarm.p2p.observer import ObserverNode, visit
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import OPEN_S


def answering_peers(identity: Path, *, named: Sequence[str] = (), open_internet: bool) -> list[str]:
    """Return those addresses at which a peer answers, out of `named` and the remembered ones.

    `identity`: this machine's key file; the remembered addresses are stored next to it. `open_internet`:
    whether to use relays and hole punching.
    """
    addresses = [*named, *read_addresses(addresses_file(identity))]
    if not addresses:
        return []
    with visit(open_internet=open_internet) as node:
        return node.call(_answering(node, addresses), timeout_s=3 * OPEN_S)


async def _answering(node: ObserverNode, addresses: Sequence[str]) -> list[str]:
    answers = await asyncio.gather(*(_answers(node, address) for address in addresses))
    return [address for address, answers_here in zip(addresses, answers, strict=True) if answers_here]


async def _answers(node: ObserverNode, address: str) -> bool:
    try:
        await node.dial(address)
    except Unreachable:
        return False
    return True
