"""The roster: one expiring record per peer under one key of the DHT. It tells who is there, not who takes part.

    outerloop/<run>/roster : { peer id : {name, addresses, fingerprint, joined} }

Always read with latest=True: the DHT's caches hide a new peer in two reads of three. A record can only be replaced by
one that expires later, so a withdrawn record is a tombstone that outlives it. Records are not signed yet: a stranger
who reaches the DHT can write a false one. It cannot take part with it, since streams prove who they come from.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import asdict, dataclass
from typing import Any

from hivemind.dht import DHTNode

from outerloop.swarm.timeouts import DHT_S, ROSTER_EXPIRY_S, ROSTER_REFRESH_S, STOP_S, limit

logger = logging.getLogger(__name__)
WITHDRAWN: dict[str, Any] = {}
NAME = re.compile(r"\d{3}-\w+", re.ASCII)


@dataclass(frozen=True)
class Record:
    """What a peer tells about itself. `name` is its local worker index and its peer id; names sort the members."""

    name: str
    addresses: list[str]
    fingerprint: str
    joined: float

    @property
    def peer_id(self) -> str:
        return id_of(self.name)


def peer_name(worker: int, peer_id: str) -> str:
    return f"{worker:03d}-{peer_id}"


def id_of(name: str) -> str:
    """The peer id in a name, which streams are opened to and prove."""
    return name.partition("-")[2]


class Roster:
    """This peer's record in the DHT, kept fresh until `withdraw`, and everybody's records."""

    def __init__(self, dht: DHTNode, *, run: str, own: Record) -> None:
        self._dht = dht
        self._key = f"outerloop/{run}/roster"
        self._own = own
        self._refreshing: asyncio.Task[None] | None = None

    async def publish(self) -> None:
        await self._store(asdict(self._own))
        self._refreshing = asyncio.create_task(self._refresh())

    async def withdraw(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await self._store(WITHDRAWN, limit_s=STOP_S)

    async def read(self) -> list[Record]:
        """The records of all peers that are there, the own one included."""
        try:
            async with limit(DHT_S):
                found = await self._dht.get(self._key, latest=True)
        except TimeoutError:
            found = None
        values = found.value if found is not None and isinstance(found.value, dict) else {}
        records = {self._own.peer_id: self._own}
        for peer_id, entry in values.items():
            if (record := _parse(peer_id, entry.value)) is not None:
                records.setdefault(record.peer_id, record)
        return list(records.values())

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(ROSTER_REFRESH_S)
            await self._store(asdict(self._own))

    async def _store(self, value: dict[str, Any], *, limit_s: float = DHT_S) -> None:
        try:
            async with limit(limit_s):
                stored = await self._dht.store(
                    self._key, value, expiration_time=time.time() + ROSTER_EXPIRY_S, subkey=self._own.peer_id
                )
        except TimeoutError:
            stored = False
        if not stored:
            logger.warning("the roster record of %s was not stored this time", self._own.name)


def _parse(peer_id: Any, value: Any) -> Record | None:
    """A stranger's bytes -> a record, or None when it is withdrawn or malformed."""
    try:
        record = Record(**value)
        well_formed = NAME.fullmatch(record.name) and record.peer_id == peer_id
        typed = isinstance(record.fingerprint, str) and isinstance(record.joined, float)
    except (TypeError, AttributeError):
        return None
    return record if well_formed and typed else None
