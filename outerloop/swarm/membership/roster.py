"""The roster: one expiring record per peer under one DHT key. It lists all peers present, members or not.

    outerloop/<run>/roster : { peer id : {name, addresses, fingerprint, joined, status, settings, incarnation,
                                      public_name} }

In a run with an allow-list, the records are not in the DHT: peers request them from the listed peers
(listed_roster.py).

The roster is always read with latest=True, because a single node may hold only a part of it. A record can only be
replaced by one that expires later, so a withdrawn record is replaced by a tombstone, an empty record. Every record,
including tombstones, is signed by the peer that it describes, and nodes accept no other records (records.py). The
content is still untrusted: its texts must be short and fit on one line, because they appear in messages and tables.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from hivemind.dht import DHTNode

from outerloop.swarm.access.public_names import PublicName
from outerloop.swarm.membership.incarnation_record import PACKED_BYTES
from outerloop.swarm.membership.listed_roster import ListedRoster, roster_key
from outerloop.swarm.membership.run_settings import well_formed as well_formed_settings
from outerloop.swarm.membership.status import Status
from outerloop.swarm.timeouts import DHT_S, ROSTER_EXPIRY_S, ROSTER_LEAST_S, ROSTER_REFRESH_S, STOP_S, limit
from outerloop.swarm.validation import MalformedMessage, id_of

logger = logging.getLogger(__name__)
WITHDRAWN: dict[str, Any] = {}
NAME = re.compile(r"\d{3}-\w{1,128}", re.ASCII)
MAX_ADDRESSES = 16
MAX_TEXT = 256


@dataclass(frozen=True)
class Record:
    """The record that a peer publishes about itself.

    name           worker index of the peer on its machine, and peer id; members are sorted by name
    addresses      libp2p addresses of the peer
    fingerprint    a single hash of all settings that must be equal on all peers
    joined         when the peer's process started, in seconds since 1970 by the peer's own clock
    settings       one hash per setting that must be equal on all peers (run_settings.py)
    incarnation    the process of the peer that wrote the record (incarnation_record.py)
    public_name    the name that the peer chose for itself, signed by it (public_names.py)
    """

    name: str
    addresses: list[str]
    fingerprint: str
    joined: float
    status: Status | None = None
    settings: bytes = b""
    incarnation: bytes = b""
    public_name: bytes = b""

    @property
    def peer_id(self) -> str:
        return id_of(self.name)

    @property
    def title(self) -> str:
        """The text of the public name, which may be shown; "" if the peer has none."""
        return PublicName.from_bytes(self.public_name).text if self.public_name else ""


def peer_name(worker: int, peer_id: str) -> str:
    return f"{worker:03d}-{peer_id}"


class Roster:
    """Publishes this peer's record, refreshes it until `withdraw`, and reads the records of all peers.

    The records are stored in the DHT or, in a run with an allow-list, by the listed peers.

    `twin`: called with the writer's incarnation if another process has written this peer's record.
    """

    def __init__(
        self,
        dht: DHTNode,
        *,
        run: str,
        own: Record,
        directory: ListedRoster | None = None,
        twin: Callable[[bytes], None] = lambda incarnation: None,
    ) -> None:
        self._dht = dht
        self._directory = directory
        self._run = run
        self._twin = twin
        self._own = replace(own, addresses=_shown(own.addresses))
        self._changed = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None

    async def publish(self) -> None:
        if self._directory is not None:
            await self._directory.serve()
        await self._store(asdict(self._own))
        self._refreshing = asyncio.create_task(self._refresh())

    async def withdraw(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await self._store(WITHDRAWN, limit_s=STOP_S)

    async def show(self, status: Status) -> None:
        """Put a new status into this peer's record, which is written in the background."""
        self._own = replace(self._own, status=status)
        self._changed.set()

    async def read(self) -> list[Record]:
        """Return the records of all peers present, including this peer's own record."""
        records = {self._own.peer_id: self._own}
        if self._directory is not None and self._directory.is_listed:
            found = parsed(await self._directory.read())
        else:
            found = await read_roster(self._dht, self._run)
        for record, _ in found:
            if record.peer_id == self._own.peer_id and record.incarnation != self._own.incarnation:
                self._twin(record.incarnation)
            records.setdefault(record.peer_id, record)
        return list(records.values())

    async def _refresh(self) -> None:
        """Write the record after each change, and often enough that it does not expire."""
        while True:
            await asyncio.sleep(ROSTER_LEAST_S)
            try:
                async with limit(ROSTER_REFRESH_S - ROSTER_LEAST_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            await self._store(asdict(self._own))

    @property
    def _is_listed(self) -> bool:
        return self._directory is not None and self._directory.is_listed

    async def _publish_listed(self, value: dict[str, Any], expires: float) -> None:
        if self._directory is not None and value == WITHDRAWN:
            await self._directory.withdraw(value, expires=expires)
        elif self._directory is not None:
            self._directory.show(value, expires=expires)

    async def _store(self, value: dict[str, Any], *, limit_s: float = DHT_S) -> None:
        expires = time.time() + ROSTER_EXPIRY_S
        try:
            async with limit(limit_s):
                await self._publish_listed(value, expires)
                stored = self._is_listed or await self._dht.store(
                    roster_key(self._run), value, expiration_time=expires, subkey=self._own.peer_id
                )
        except TimeoutError:
            stored = False
        if not stored and value != WITHDRAWN:  # when the last peer leaves, no other peer can store its tombstone
            logger.warning("the roster record of %s could not be stored", self._own.name)


async def read_roster(dht: DHTNode, run: str) -> list[tuple[Record, float]]:
    """Return (record, age in seconds) for each peer present, as read from the DHT."""
    try:
        async with limit(DHT_S):
            found = await dht.get(roster_key(run), latest=True)
    except TimeoutError:
        found = None
    values = found.value if found is not None and isinstance(found.value, dict) else {}
    return parsed((peer_id, entry.value, entry.expiration_time) for peer_id, entry in values.items())


def parsed(found: Iterable[tuple[Any, Any, float]]) -> list[tuple[Record, float]]:
    """Return (record, age in seconds) for each valid record. Skip withdrawn and malformed records.

    `found`: (peer id, content of its record, expiration time) of each record.
    """
    records, now = [(_parse(peer_id, value), expires) for peer_id, value, expires in found], time.time()
    return [(record, max(0.0, now + ROSTER_EXPIRY_S - expires)) for record, expires in records if record is not None]


def _parse(peer_id: Any, value: Any) -> Record | None:
    """Parse an untrusted record. Return None if it is withdrawn or malformed.

    If only the status, the settings, the incarnation or the public name is malformed, leave that field empty.
    """
    try:
        record = Record(**value)
        well_formed = NAME.fullmatch(record.name) and record.peer_id == peer_id
        typed = _is_line(record.fingerprint) and _is_time(record.joined) and isinstance(record.addresses, list)
    except (TypeError, AttributeError):
        return None
    if not (well_formed and typed):
        return None
    settings = record.settings if well_formed_settings(record.settings) else b""
    incarnation = record.incarnation
    incarnation = incarnation if isinstance(incarnation, bytes) and len(incarnation) == PACKED_BYTES else b""
    shown, status = _shown(record.addresses), _status(record.status)
    return replace(
        record,
        addresses=shown,
        status=status,
        settings=settings,
        incarnation=incarnation,
        public_name=_public_name(record.public_name),
    )


def _shown(addresses: list[Any]) -> list[str]:
    """Return the addresses that may be displayed, among the first MAX_ADDRESSES of a record."""
    return [address for address in addresses[:MAX_ADDRESSES] if _is_line(address)]


def _status(value: Any) -> Status | None:
    try:
        return Status.from_map(value)
    except MalformedMessage:
        return None


def _public_name(value: Any) -> bytes:
    """Return `value` if it is a well-formed statement of a public name, else b"".

    The name's own signature is not verified, because the signature of the record covers the name as well.
    """
    try:
        PublicName.from_bytes(value)
    except MalformedMessage:
        return b""
    return bytes(value)


def _is_time(value: Any) -> bool:
    """Return whether `value` is a finite float. Times are sorted, and NaN cannot be ordered."""
    return isinstance(value, float) and math.isfinite(value)


def _is_line(text: Any) -> bool:
    """Return whether `text` may be displayed: it must be short and contain no control characters."""
    return isinstance(text, str) and len(text) <= MAX_TEXT and text.isprintable()
