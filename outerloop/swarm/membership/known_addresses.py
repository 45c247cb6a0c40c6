"""Remember the addresses of a run's peers in a file, so that a peer that restarts can find the run again.

The file is next to the peer's key. Its lines are full multiaddrs, which come from other peers' roster records and are
not trusted: an address counts only if it contains the id of the peer that published it, and libp2p verifies that id
when the address is dialed. It may contain only the CHARACTERS of a multiaddr, because remembered addresses become an
option of this machine and an argument of libp2p's daemon, in which `$` and `,` have a meaning. The number of addresses
is limited. Peers that this machine met first stay in the file, and the joining times in the records play no part,
because a record can state any time. So strangers can only take free places, and the places of peers that are away.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

from outerloop.state.checkpoint import write_atomically
from outerloop.swarm.membership.roster import Record
from outerloop.swarm.p2p.daemon import check_addresses
from outerloop.swarm.p2p.reachability import best_first
from outerloop.swarm.timeouts import ROSTER_REFRESH_S
from outerloop.types import UserError

logger = logging.getLogger(__name__)
CHARACTERS = re.compile(r"[0-9A-Za-z/.:_-]+")
MAX_PER_PEER = 4
"""Maximum number of addresses to remember of one peer."""
MAX_ADDRESSES = 64
"""Maximum number of addresses to remember in total."""


def addresses_file(identity: Path | str) -> Path:
    """Return the path of the file with the remembered addresses. `identity`: the peer's key file."""
    return Path(identity).with_suffix(".peers")


def peer_of(address: str) -> str:
    """Return the peer id in a full multiaddr."""
    return address.rpartition("/p2p/")[2]


def read_addresses(file: Path) -> list[str]:
    """Return the remembered addresses that are valid. The list is empty if there is no file."""
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    return [line for line in lines[:MAX_ADDRESSES] if _is_full(line)]


def _no_member(peer_id: str) -> bool:
    return False


def remember(file: Path, records: Iterable[Record], *, is_member: Callable[[str], bool] = _no_member) -> None:
    """Update the remembered addresses with the records of the peers present. Raises OSError if that fails."""
    kept = read_addresses(file)
    found = addresses_of(records, kept=kept, is_member=is_member)
    if found != kept:
        write_atomically(file, "".join(f"{line}\n" for line in found).encode())


async def keep_addresses(
    file: Path, others: Callable[[], Awaitable[Iterable[Record]]], *, is_member: Callable[[str], bool]
) -> None:
    """Remember the addresses of the peers that `others` returns, every ROSTER_REFRESH_S. Does not return.

    `is_member`: returns whether a peer (id) is in the last roster that this peer knows. It is called in a thread.
    """
    while True:
        records = await others()
        try:
            await asyncio.to_thread(remember, file, records, is_member=is_member)
        except OSError as error:
            logger.warning("the addresses of the other peers could not be written to %s: %s", file, error)
        await asyncio.sleep(ROSTER_REFRESH_S)


def addresses_of(
    records: Iterable[Record], *, kept: Sequence[str] = (), is_member: Callable[[str], bool] = _no_member
) -> list[str]:
    """Return the addresses to remember: at most MAX_PER_PEER valid ones of each peer, and MAX_ADDRESSES in total.

    The first address of each peer precedes all second ones. Members precede other peers; among each of these two
    groups, peers that have a record precede peers that are known only from `kept`. Otherwise peers have the order of
    `kept`, followed by new peers.
    """
    known: dict[str, list[str]] = {}
    for line in kept:
        known.setdefault(peer_of(line), []).append(line)
    present = {record.peer_id: own for record in records if (own := _own_addresses(record))}
    addresses = known | present
    peers = sorted(addresses, key=lambda peer: (not is_member(peer), peer not in present))
    by_place = zip_longest(*(addresses[peer] for peer in peers))
    return [line for lines in by_place for line in lines if line is not None][:MAX_ADDRESSES]


def _own_addresses(record: Record) -> list[str]:
    own = [line for line in record.addresses if _is_full(line) and peer_of(line) == record.peer_id]
    return best_first(own)[:MAX_PER_PEER]


def _is_full(address: str) -> bool:
    if not CHARACTERS.fullmatch(address):
        return False
    try:
        check_addresses("", [address], must_name="p2p")
    except UserError:
        return False
    return True
