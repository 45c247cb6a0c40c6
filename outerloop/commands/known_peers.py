"""Find out which remembered peers of a run answer, so that a peer that restarts joins them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from outerloop.config import load
from outerloop.config.build import initial_peers
from outerloop.config.option_mapping import to_overrides
from outerloop.config.run_directory import identity_file
from outerloop.swarm.membership.known_addresses import addresses_file, read_addresses
from outerloop.swarm.p2p.observer import ObserverNode, visit
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import OPEN_S


def with_known_peers(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Return the settings, with exchange.initial_peers set to the remembered peers of the run that answer.

    The settings are unchanged if initial peers are set, if the exchange has none, if the run is new and has no folder
    yet, or if no remembered peer answers. `overrides`: those from which the settings were loaded.
    """
    if "initial_peers" not in config.exchange or initial_peers(config) or not config.run_dir:
        return config
    open_internet = bool(config.exchange.get("open_internet"))
    peers = answering_peers(identity_file(Path(config.run_dir), 0), open_internet=open_internet)
    return load.load([*overrides, *to_overrides({"exchange.initial_peers": peers})]) if peers else config


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
