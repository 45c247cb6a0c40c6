"""The roster: one expiring record per peer under one key of the DHT. It tells who is there, not who takes part.

    outerloop/<run>/roster : { peer id : {name, addresses, fingerprint, joined, status, settings} }

Always read with latest=True: the DHT's caches hide a new peer in two reads of three. A record can only be replaced by
one that expires later, so a withdrawn record is a tombstone that outlives it. Every record, tombstones too, is signed
by the peer that it is of, and nodes take no others (records.py). What a signer writes of itself is still a stranger's
word: it is bounded and of one line, since it ends in messages and in tables.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from hivemind.dht import DHTNode

from outerloop.swarm.fields import BadMessage, id_of
from outerloop.swarm.settings import well_formed as well_formed_settings
from outerloop.swarm.status import Status
from outerloop.swarm.timeouts import DHT_S, ROSTER_EXPIRY_S, ROSTER_LEAST_S, ROSTER_REFRESH_S, STOP_S, limit

logger = logging.getLogger(__name__)
WITHDRAWN: dict[str, Any] = {}
NAME = re.compile(r"\d{3}-\w{1,128}", re.ASCII)
MAX_ADDRESSES = 16
MAX_TEXT = 256


@dataclass(frozen=True)
class Record:
    """What a peer tells about itself. `name` is its local worker index and its peer id; names sort the members.

    `settings`: hashes of what must be equal everywhere (settings.py); `fingerprint` is one of all of them.
    """

    name: str
    addresses: list[str]
    fingerprint: str
    joined: float
    status: Status | None = None
    settings: bytes = b""

    @property
    def peer_id(self) -> str:
        return id_of(self.name)


def peer_name(worker: int, peer_id: str) -> str:
    return f"{worker:03d}-{peer_id}"


class Roster:
    """This peer's record in the DHT, kept fresh until `withdraw`, and everybody's records."""

    def __init__(self, dht: DHTNode, *, run: str, own: Record) -> None:
        self._dht = dht
        self._run = run
        self._own = replace(own, addresses=_shown(own.addresses))
        self._news = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None

    async def publish(self) -> None:
        await self._store(asdict(self._own))
        self._refreshing = asyncio.create_task(self._refresh())

    async def withdraw(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await self._store(WITHDRAWN, limit_s=STOP_S)

    async def show(self, status: Status) -> None:
        """Take this into the record; it is written soon."""
        self._own = replace(self._own, status=status)
        self._news.set()

    async def read(self) -> list[Record]:
        """The records of all peers that are there, the own one included."""
        records = {self._own.peer_id: self._own}
        for record, _ in await read_roster(self._dht, self._run):
            records.setdefault(record.peer_id, record)
        return list(records.values())

    async def _refresh(self) -> None:
        """Write the record when there is news, and while there is none often enough for it not to expire."""
        while True:
            await asyncio.sleep(ROSTER_LEAST_S)
            try:
                async with limit(ROSTER_REFRESH_S - ROSTER_LEAST_S):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            await self._store(asdict(self._own))

    async def _store(self, value: dict[str, Any], *, limit_s: float = DHT_S) -> None:
        try:
            async with limit(limit_s):
                stored = await self._dht.store(
                    _key(self._run), value, expiration_time=time.time() + ROSTER_EXPIRY_S, subkey=self._own.peer_id
                )
        except TimeoutError:
            stored = False
        if not stored:
            logger.warning("the roster record of %s was not stored this time", self._own.name)


async def read_roster(dht: DHTNode, run: str) -> list[tuple[Record, float]]:
    """Who is there: each record, and the age of what it tells in seconds."""
    try:
        async with limit(DHT_S):
            found = await dht.get(_key(run), latest=True)
    except TimeoutError:
        found = None
    values = found.value if found is not None and isinstance(found.value, dict) else {}
    parsed = [(_parse(peer_id, entry.value), entry.expiration_time) for peer_id, entry in values.items()]
    now = time.time()
    return [(record, max(0.0, now + ROSTER_EXPIRY_S - expires)) for record, expires in parsed if record is not None]


def _key(run: str) -> str:
    return f"outerloop/{run}/roster"


def _parse(peer_id: Any, value: Any) -> Record | None:
    """A stranger's bytes -> a record, or None when it is withdrawn or malformed.

    Malformed status or settings are left out.
    """
    try:
        record = Record(**value)
        well_formed = NAME.fullmatch(record.name) and record.peer_id == peer_id
        typed = _is_line(record.fingerprint) and isinstance(record.joined, float) and isinstance(record.addresses, list)
    except (TypeError, AttributeError):
        return None
    if not (well_formed and typed):
        return None
    settings = record.settings if well_formed_settings(record.settings) else b""
    return replace(record, addresses=_shown(record.addresses), status=_status(record.status), settings=settings)


def _shown(addresses: list[Any]) -> list[str]:
    """As many as a record has room for."""
    return [address for address in addresses[:MAX_ADDRESSES] if _is_line(address)]


def _status(value: Any) -> Status | None:
    try:
        return Status.from_map(value)
    except BadMessage:
        return None


def _is_line(text: Any) -> bool:
    """A text that may be shown: short, and nothing in it that moves a cursor."""
    return isinstance(text, str) and len(text) <= MAX_TEXT and text.isprintable()
