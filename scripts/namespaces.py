"""Hosts as network namespaces, made by scripts/wan.sh: addresses, commands on a host, the cable between near and far.

Pulling the cable parts the two sides without a word: packets are lost, no connection is told. Takes root and iproute2:
`lacking` tells what is missing, `ready_or_exit` ends a program that needs it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000
SCRIPT = str(Path(__file__).absolute().parent / "wan.sh")


class Network:
    """A set of hosts with a name of its own, so that several can be there at once."""

    def __init__(self, name: str) -> None:
        self.name = name

    def up(self, hosts: int, *options: str) -> None:
        """Raises CalledProcessError; what the script says of it is in `stderr`."""
        self._wan("up", str(hosts), *options)

    def down(self) -> None:
        """Processes on the hosts end with it."""
        self._wan("down")

    def part(self) -> None:
        """Pull the cable."""
        self._wan("part")

    def heal(self) -> None:
        """Plug it in again."""
        self._wan("heal")

    def address(self, host: int) -> str:
        return self._wan("address", str(host)).strip()

    def enter(self, host: int) -> None:
        """From now on this thread, and all that it starts, is on this host. Raises OSError."""
        with Path(f"/run/netns/outerloop-{self.name}-{host}").open() as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"host {host} of {self.name} cannot be entered")

    def inside(self, host: int, command: Sequence[str]) -> list[str]:
        """A command that runs on this host."""
        return ["env", f"WAN_NAME={self.name}", SCRIPT, "run", str(host), *command]

    def _wan(self, *arguments: str) -> str:
        environment = os.environ | {"WAN_NAME": self.name}
        return subprocess.run([SCRIPT, *arguments], check=True, capture_output=True, text=True, env=environment).stdout


@contextmanager
def network(hosts: int, *options: str) -> Iterator[Network]:
    """Hosts that are gone at the end, however the block ends."""
    made = Network(str(os.getpid()))
    try:
        made.up(hosts, *options)
        yield made
    finally:
        made.down()


def ready_or_exit(*options: str) -> None:
    """Before the first network of a program: from now on SIGTERM too leaves nothing behind.

    Raises SystemExit where there can be no hosts with these options.
    """
    if why := lacking(*options):
        raise SystemExit(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def lacking(*options: str) -> str:
    """Why there can be no hosts with these options here; empty when there can."""
    try:
        with network(1, "--rate", "100mbit", *options):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no hosts as network namespaces: {error.stderr.strip()}"
