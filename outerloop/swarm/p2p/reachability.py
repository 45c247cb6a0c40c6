"""Determine from where an address can be reached. Only the form of the address is examined; nothing is dialed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

THIS_MACHINE, THIS_NETWORK = "this machine only", "this network only"
ORDER = ("public", "name", "relay", THIS_NETWORK, THIS_MACHINE)
"""Places from which an address can be reached, the best one first."""


def reachable_from(address: str) -> str:
    """Return from where a multiaddr can be reached: one of ORDER."""
    match = re.match(r"/ip[46]/([^/]+)", address)
    if "/p2p-circuit" in address:
        return "relay"
    if match is None:
        return "name"
    ip = ipaddress.ip_address(match[1])
    return THIS_MACHINE if ip.is_loopback else "public" if ip.is_global else THIS_NETWORK


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a program that listens on the IP address `host`."""
    return ipaddress.ip_address(host).is_loopback


def best_first(addresses: Iterable[str]) -> list[str]:
    """Return the multiaddrs sorted by ORDER. Addresses with the same place in ORDER keep their order."""
    return sorted(addresses, key=lambda address: ORDER.index(reachable_from(address)))
