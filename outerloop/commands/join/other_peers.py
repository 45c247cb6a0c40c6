"""Find further peers of a run: the one whose address the user typed may leave at any time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outerloop.commands.join.silence import connection_error
from outerloop.commands.known_peers import answering_peers
from outerloop.commands.observe import SeenPeers, own_addresses
from outerloop.config.run_directory import identity_file
from outerloop.swarm.membership.known_addresses import addresses_file, peer_of, read_addresses
from outerloop.swarm.p2p.observer import ObserverNode
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import limit

OTHERS = 3
"""Maximum number of other peers that a joining machine is given, in addition to the one whose address was typed."""
ANSWER_S = 2.0
"""Time limit for the connections to these peers."""


def answering_others(node: ObserverNode, seen: SeenPeers, address: str) -> list[str]:
    """Return addresses of up to OTHERS peers, chosen at random, that answer within ANSWER_S.

    `seen`: the records of the peers of the run. `address`: an address of the peer to leave out.
    """
    others = [known for peer, known in sorted(own_addresses(seen).items()) if peer != peer_of(address)]
    chosen = random.sample(others, min(OTHERS, len(others)))
    return node.call(_answering(node, chosen), timeout_s=2 * ANSWER_S) if chosen else []


async def _answering(node: ObserverNode, addresses: Iterable[str]) -> list[str]:
    found = await asyncio.gather(*(_dialed(node, address) for address in addresses))
    return [address for address in found if address]


async def _dialed(node: ObserverNode, address: str) -> str:
    """Return the address if the peer there answers within ANSWER_S, else ""."""
    try:
        async with limit(ANSWER_S):
            await node.dial(address)
    except (Unreachable, TimeoutError):
        return ""
    return address


def address_to_ask(address: str, typed: dict[str, Any]) -> str:
    """Return the address to ask: `address`, or that of another peer of the same run that answers.

    Another peer is asked only if no TCP connection to `address` succeeds, and if this machine has joined the run of
    that peer before: it then remembers the addresses of other peers. If none of them answers, return `address`.

    `typed`: the options that the user typed, which may contain run_dir.
    """
    folders = [Path(str(typed["run_dir"]))] if "run_dir" in typed else sorted(Path("runs").glob("join-*"))
    keys = [identity_file(folder, 0) for folder in folders]
    known = [key for key in keys if peer_of(address) in map(peer_of, read_addresses(addresses_file(key)))]
    if not known or connection_error(address) is None:
        return address
    return next(iter(answering_peers(known[0])), address)
