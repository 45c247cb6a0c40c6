"""Remember the addresses of a run's peers in a file, so that a peer that restarts can find the run again.

The file is next to the peer's key. Its lines are full multiaddrs, which come from other peers' roster records and are
not trusted: an address counts only if it contains the id of the peer that published it, and libp2p verifies that id
when the address is dialed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from outerloop.state.checkpoint import write_atomically
from outerloop.swarm.membership.roster import Record
from outerloop.swarm.p2p.daemon import check_addresses
from outerloop.swarm.p2p.reachability import best_first
from outerloop.swarm.timeouts import ROSTER_REFRESH_S
from outerloop.types import UserError

logger = logging.getLogger(__name__)
MAX_PER_PEER = 4
"""Maximum number of addresses to remember of one peer."""
MAX_ADDRESSES = 64
"""Maximum number of addresses to remember in total, those of the peers that joined first."""


def addresses_file(identity: Path | str) -> Path:
    """Return the file of remembered addresses of the peer with this key file."""
    return Path(identity).with_suffix(".peers")


def read_addresses(file: Path) -> list[str]:
    """Return the remembered addresses that are valid. The list is empty if there is no file."""
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    return [line for line in lines[:MAX_ADDRESSES] if _is_full(line)]


def write_addresses(file: Path, addresses: Iterable[str]) -> None:
    """Replace the remembered addresses."""
    write_atomically(file, "".join(f"{line}\n" for line in addresses).encode())


async def keep_addresses(file: Path, others: Callable[[], Awaitable[Iterable[Record]]]) -> None:
    """Write the addresses of the peers that `others` returns, every ROSTER_REFRESH_S. Does not return.

    If no other peer is present, the file keeps the last ones.
    """
    written: list[str] = []
    while True:
        found = addresses_of(await others())
        if found and found != written:
            try:
                await asyncio.to_thread(write_addresses, file, found)
                written = found
            except OSError as error:
                logger.warning("the addresses of the other peers could not be written to %s: %s", file, error)
        await asyncio.sleep(ROSTER_REFRESH_S)


def addresses_of(records: Iterable[Record]) -> list[str]:
    """Return the valid addresses in the records, at most MAX_PER_PEER of each peer and MAX_ADDRESSES in total."""
    found: list[str] = []
    for record in sorted(records, key=lambda record: record.joined):
        own = [line for line in record.addresses if _is_full(line) and line.endswith(f"/p2p/{record.peer_id}")]
        found += best_first(own)[:MAX_PER_PEER]
    return found[:MAX_ADDRESSES]


def _is_full(address: str) -> bool:
    try:
        check_addresses("", [address], must_name="p2p")
    except UserError:
        return False
    return True
