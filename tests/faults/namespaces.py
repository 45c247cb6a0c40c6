"""Hosts as network namespaces on two switches with one cable between them, and nothing of it outside of namespaces.

    host 0 ─┐                      ┌─ host 2
            near ──── cable ──── far
    host 1 ─┘                      └─ host 3

Pulling the cable parts the two sides without a word: packets are lost, no connection is told. A host's processes are
started with `inside`; its address is `address(host)`. Takes root and iproute2: `lacking` tells what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

PREFIX = f"outerloop-{os.getpid()}-"


class Network:
    """`sides`: how many hosts on each switch, near and far; hosts are counted through."""

    def __init__(self, sides: tuple[int, int]) -> None:
        self._hub = f"{PREFIX}hub"
        self._hosts = [f"{PREFIX}{host}" for host in range(sum(sides))]
        self._near = sides[0]

    def build(self) -> None:
        for namespace in (self._hub, *self._hosts):
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        for switch in ("near", "far"):
            _ip("-n", self._hub, "link", "add", switch, "type", "bridge")
            _ip("-n", self._hub, "link", "set", switch, "up")
        _ip("-n", self._hub, "link", "add", "cable-near", "type", "veth", "peer", "name", "cable-far")
        self._plug("cable-near", "near")
        self._plug("cable-far", "far")
        for host in range(len(self._hosts)):
            self._add(host)

    def remove(self) -> None:
        """Namespaces take their links with them."""
        for namespace in (self._hub, *self._hosts):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", namespace)

    def part(self) -> None:
        """Pull the cable."""
        _ip("-n", self._hub, "link", "set", "cable-near", "down")

    def heal(self) -> None:
        """Plug it in again."""
        _ip("-n", self._hub, "link", "set", "cable-near", "up")

    def cap(self, host: int, mbit_per_s: float) -> None:
        """Let the host send no faster than this: a token bucket of 128 KB, a queue of a fifth of a second."""
        rate = ("rate", f"{mbit_per_s}mbit", "burst", "128kb", "latency", "200ms")
        command = ("ip", "netns", "exec", self._hosts[host], "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *rate)
        subprocess.run(command, check=True, capture_output=True, text=True)

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def inside(self, host: int, command: Sequence[str]) -> list[str]:
        """A command that runs on this host."""
        return ["ip", "netns", "exec", self._hosts[host], *command]

    def _add(self, host: int) -> None:
        namespace, port = self._hosts[host], f"port{host}"
        _ip("-n", self._hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self._plug(port, "near" if host < self._near else "far")
        _ip("-n", namespace, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")

    def _plug(self, port: str, switch: str) -> None:
        _ip("-n", self._hub, "link", "set", port, "master", switch, "up")


@contextmanager
def network(sides: tuple[int, int]) -> Iterator[Network]:
    """A network that is gone at the end, however the block ends. Its processes must have ended by then."""
    made = Network(sides)
    try:
        made.build()
        yield made
    finally:
        made.remove()


def lacking() -> str:
    """Why there can be no namespaces here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if shutil.which("ip") is None:
        return "network namespaces take iproute2 (apt-get install iproute2)"
    try:
        with network((1, 0)):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
