"""List what to type on other machines to join a run by the address of this machine's first worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig

from outerloop.config import build
from outerloop.config.manifest.content import is_joinable


def address_lines(config: DictConfig, run_dir: Path, addresses: Sequence[str]) -> Iterator[str]:
    """Yield the lines to print; none if the run needs no more peers and admits no late joiners.

    A peer that has itself joined by an address prints only its own one. Others need it if the first peer leaves.
    """
    peers, address = config.exchange.peers, addresses[0]
    if peers <= config.workers and not build.capabilities(config).replicated:
        return
    if build.initial_peers(config):
        yield f"address of this peer: {address}"
        return
    local = all("/127.0.0.1/" in one for one in addresses)
    who, join, host = "others", f"outerloop join {address}", "exchange.host=0.0.0.0 "
    if local:
        who, join, host = "others on this machine", f"{join} --host 127.0.0.1", ""
    who_joins = f"{who} join"
    if config.exchange.get("allow"):
        invites = "" if config.exchange.get("invites") else "with exchange.invites=true, "
        yield f"{invites}outerloop invite {run_dir} prints the command for a new machine"
    elif is_joinable(config.exchange.get("manifest")):
        yield f"{who} join with: {join}"
        who_joins = "or"
    yield f"{who_joins} with the same options and exchange.peers={peers} {host}'exchange.initial_peers=[{address}]'"
    if local:
        yield "start with exchange.host=0.0.0.0 to let other machines join"
