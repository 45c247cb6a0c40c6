"""Helpers of the tests with real daemons."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from outerloop.exchange.swarm import SwarmExchange
from outerloop.exchange.swarm_gather import SwarmGather

Make = Callable[..., SwarmGather]
Exchange = TypeVar("Exchange", bound=SwarmExchange)


def together(peers: Sequence[Exchange], act: Callable[[Exchange], Any]) -> list[Any]:
    """The same call on all peers at once, each in a thread of its own; a UserError is a result."""

    def result(peer: Exchange) -> Any:
        try:
            return act(peer)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(max(1, len(peers))) as pool:
        return list(pool.map(result, peers))


def eventually(condition: Callable[[], bool], *, limit_s: float) -> bool:
    until = time.monotonic() + limit_s
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


class Daemon(NamedTuple):
    """A running p2pd, and the folder of its sockets."""

    pid: int
    folder: Path


def daemon_of(identity: Path) -> Daemon:
    """Return the daemon that has this identity file."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            name, *arguments = path.read_text().split("\0")
            if name.endswith("p2pd") and f"-id={identity}" in arguments:
                [listen] = [one for one in arguments if one.startswith("-listen=/unix")]
                return Daemon(int(path.parent.name), Path(listen.removeprefix("-listen=/unix")).parent)
    raise AssertionError(f"no daemon has the identity {identity}")


def runs(pid: int) -> bool:
    """Whether a process is there; a zombie that its parent has not collected is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
