"""Find out which remembered peers of a run answer, so that a peer that restarts joins them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outerloop.swarm.membership.known_addresses import addresses_file, read_addresses
from outerloop.swarm.p2p.observer import visit
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
        return node.call(node.answering(addresses), timeout_s=3 * OPEN_S)
