"""Find further peers of a run: the one whose address the user typed may leave at any time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from outerloop.commands.join.settings import uses_open_internet
from outerloop.commands.join.silence import connection_error
from outerloop.commands.observe import SeenPeers, own_addresses
from outerloop.config.options.saved_settings import FILE, run_id, saved_settings
from outerloop.config.run_directory import identity_file
from outerloop.swarm.membership.answering_peers import answering_peers
from outerloop.swarm.membership.known_addresses import addresses_file, peer_of, read_addresses
from outerloop.swarm.p2p.observer import ObserverNode

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
    return node.call(node.answering(chosen, within_s=ANSWER_S), timeout_s=2 * ANSWER_S) if chosen else []


def address_to_ask(address: str, typed: dict[str, Any], *, invited: bool) -> tuple[str, str | None]:
    """Return the address to ask, and the id of the run that the peer there must send (None: any run).

    The address is `address`, or that of another peer that answers. Another peer is asked only if no TCP connection to
    `address` succeeds, and if this machine has joined the run of that peer before: it then remembers the addresses of
    other peers, and the id of the run is that in its folder. Anyone can be among these peers, so one of them is chosen
    at random: a repeated command asks another one. If none of them answers, return `address`.

    Args:
        typed: the options that the user typed, which may contain run_dir.
        invited: whether this machine shows an invite. Then only listed peers are asked, because others accept none.
    """
    folders = [Path(str(typed["run_dir"]))] if "run_dir" in typed else sorted(Path("runs").glob("join-*"))
    known = [folder for folder in folders if _remembers(folder, peer_of(address))]
    if not known or connection_error(address) is None:
        return address, None
    saved = saved_settings(known[0])
    answering = answering_peers(identity_file(known[0], 0), open_internet=uses_open_internet(typed))
    useful = [one for one in answering if not invited or peer_of(one) in saved.exchange.allow]
    return (random.choice(useful), run_id(saved)) if useful else (address, None)


def _remembers(folder: Path, peer: str) -> bool:
    """Return whether a run directory has the settings of its run and an address of this peer."""
    addresses = read_addresses(addresses_file(identity_file(folder, 0)))
    return (folder / FILE).exists() and peer in map(peer_of, addresses)
