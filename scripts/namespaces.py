"""Manage hosts as network namespaces, created by scripts/wan.sh.

The module returns the addresses of hosts, runs commands on them, and partitions the network into two groups of hosts. A
partition only drops packets; it resets no connection. Creating hosts requires root privileges and iproute2: `lacking`
returns what is missing, and `ready_or_exit` exits if anything is missing.
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
    """A named set of hosts. Sets with different names can exist at the same time."""

    def __init__(self, name: str) -> None:
        self.name = name

    def up(self, hosts: int, *options: str) -> None:
        """Create the hosts. Raises CalledProcessError if that fails, with the script's message in `stderr`."""
        self._wan("up", str(hosts), *options)

    def down(self) -> None:
        """Remove the hosts and end the processes on them."""
        self._wan("down")

    def part(self) -> None:
        """Drop all packets between the two groups of hosts."""
        self._wan("part")

    def heal(self) -> None:
        """Reconnect the two groups of hosts."""
        self._wan("heal")

    def filter(self, host: int, port: int) -> None:
        """Drop all packets that a host sends from a TCP port, so that connections to this port get no answer."""
        self._wan("filter", str(host), str(port))

    def address(self, host: int) -> str:
        return self._wan("address", str(host)).strip()

    def enter(self, host: int) -> None:
        """Move the calling thread, and everything it starts afterwards, into the network namespace of a host.

        Raises OSError if this fails.
        """
        with Path(f"/run/netns/outerloop-{self.name}-{host}").open() as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter host {host} of {self.name}")

    def inside(self, host: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` on this host."""
        return ["env", f"WAN_NAME={self.name}", SCRIPT, "run", str(host), *command]

    def _wan(self, *arguments: str) -> str:
        environment = os.environ | {"WAN_NAME": self.name}
        return subprocess.run([SCRIPT, *arguments], check=True, capture_output=True, text=True, env=environment).stdout


@contextmanager
def network(hosts: int, *options: str) -> Iterator[Network]:
    """Create hosts, and remove them at the end of the block, even after an error."""
    made = Network(str(os.getpid()))
    try:
        made.up(hosts, *options)
        yield made
    finally:
        made.down()


def ready_or_exit(*options: str) -> None:
    """Check that hosts with these options can be created, and make SIGTERM remove hosts from now on.

    Raises SystemExit if they cannot be created on this machine.
    """
    if why := lacking(*options):
        raise SystemExit(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def lacking(*options: str) -> str:
    """Return the reason hosts with these options cannot be created on this machine, or an empty string if they can."""
    try:
        with network(1, "--rate", "100mbit", *options):
            return ""
    except subprocess.CalledProcessError as error:
        return f"cannot create hosts as network namespaces: {error.stderr.strip()}"
