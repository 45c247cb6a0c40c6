"""The roster of a run with an allow-list: peers request records directly from the listed and invited peers.

    outerloop/1/<run>/roster   {}                 ->   <- {records: [own]}     returns the answering peer's own record
                               {record}           ->   <- {}                   withdraws the record of the asking peer
                               {after: peer id}   ->   <- {records, more}      returns a page of all stored records

A record has the form in which the DHT would store it: [owner, value with its signature, expiration time] (records.py).
A record replaces one that expires earlier. A read-only observer reads the whole roster in pages from one peer, which
first asks the other peers for their records.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer

from outerloop.swarm.access.access_control import ROSTER
from outerloop.swarm.dht.records import SignedRecords
from outerloop.swarm.dht.storage import BESIDE_BYTES
from outerloop.swarm.dht.values import is_item
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable
from outerloop.swarm.timeouts import LISTED_S, VIEW_S
from outerloop.swarm.validation import MAX_PEERS

PAGE_BYTES = 48 * 1024
"""Size at which a page is full. With its last record of up to 8 KiB, the page still fits in a message of 64 KiB."""
Found = list[tuple[Any, Any, float]]
"""(peer id, content of its record, expiration time)."""


def roster_key(run: str) -> str:
    """Return the DHT key of a run's roster. The signatures of the records cover this key."""
    return f"outerloop/{run}/roster"


class ListedRoster(RpcService):
    """Stores this peer's record and those of the listed and invited peers. `records` signs and verifies them."""

    service = ROSTER

    def __init__(self, transport: Transport, records: SignedRecords, *, run: str) -> None:
        super().__init__(transport, run=run)
        self._records = records
        self._key = DHTID.generate(source=roster_key(run)).to_bytes()
        self._held: dict[str, DHTRecord] = {}  # by owner
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._read_s = float("-inf")

    @property
    def is_listed(self) -> bool:
        """Return whether the run has an allow-list. If so, this roster is used instead of the DHT."""
        return self._transport.trust.allow.closed

    def show(self, value: Any, *, expires: float) -> None:
        """Sign `value` as this peer's own record, and store the record."""
        own = self._transport.peer_id
        record = self._record(own, MSGPackSerializer.dumps(value), expires)
        self._held[own] = self._record(own, self._records.sign_value(record), expires)

    async def withdraw(self, value: Any, *, expires: float) -> None:
        """Replace this peer's own record with `value`, and send the new record to all peers whose records it holds."""
        self.show(value, expires=expires)
        if self.is_listed:
            request = {"record": _packed(self._held[self._transport.peer_id])}
            asking = [asyncio.create_task(self._ask(peer, request)) for peer in self._others() if peer in self._held]
            _, late = await asyncio.wait(asking, timeout=LISTED_S) if asking else ((), ())
            for task in late:
                task.cancel()

    async def read(self) -> Found:
        """Ask the listed and invited peers for their records, and return those of the peers present.

        Waits up to LISTED_S. Records that arrive later appear in a later read.
        """
        self._read_s = asyncio.get_running_loop().time()
        for peer in self._others():
            if peer not in self._asking:
                self._asking[peer] = asyncio.create_task(self._refresh(peer))
        if self._asking:
            await asyncio.wait(list(self._asking.values()), timeout=LISTED_S)
        return [self._unpacked(record) for record in self._current()]

    async def read_through(self, peer: str) -> Found:
        """Return all records that another peer holds, including those of other peers.

        Raises Unreachable, BrokenStream or TimeoutError if the peer does not answer.
        """
        found: dict[str, DHTRecord] = {}
        more = True
        while more and len(found) < MAX_PEERS:
            after = max(found, default="")
            answer = await self._call(peer, {"after": after}, within_s=2 * VIEW_S)
            page = self._valid(answer.get("records"), by=peer)
            found |= page
            more = bool(answer.get("more")) and max(page, default="") > after
        return [self._unpacked(record) for record in found.values()]

    async def _refresh(self, peer: str) -> None:
        try:
            await self._ask(peer, {})
        finally:
            del self._asking[peer]

    async def _ask(self, peer: str, request: Request) -> None:
        """Send a request to a peer. If the answer contains that peer's own record, store the record."""
        try:
            answer = await self._call(peer, request, within_s=VIEW_S)
        except (BrokenStream, TimeoutError, Unreachable):
            return
        self._hold(peer, answer.get("records"))

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        if "record" in request:
            self._hold(remote, [request["record"]])
            await stream.send_object({})
        elif "after" in request:
            await stream.send_object(await self._page(request["after"]))
        else:
            own = [record for record in self._current() if self._is_own(record)]
            await stream.send_object({"records": list(map(_packed, own))})
        await stream.ended()

    async def _page(self, after: Any) -> dict[str, Any]:
        """Return one page of the records whose owner's id is greater than `after`.

        For the first page, ask all peers for their records first, unless that happened within the last LISTED_S.
        """
        if not isinstance(after, str):
            raise Unreadable("a request for a page must name the peer id after which the page starts")
        if not after and asyncio.get_running_loop().time() - self._read_s > LISTED_S:
            await self.read()
        entries = [entry for entry in map(_packed, self._current()) if entry[0] > after]
        page: list[list[Any]] = []
        while len(page) < len(entries) and sum(len(value) + BESIDE_BYTES for _, value, _ in page) < PAGE_BYTES:
            page.append(entries[len(page)])
        return {"records": page, "more": len(page) < len(entries)}

    def _hold(self, peer: str, entries: Any) -> None:
        """Store a peer's own record from `entries`, if it is valid and expires later than the stored one.

        Log a record that has already expired. It is of no use, and no honest peer whose clock is right sends one.
        """
        record = self._valid(entries, by=peer).get(peer) if self.is_listed else None
        held = self._held.get(peer)
        if record is None:
            return
        if (expired_s := time.time() - record.expiration_time) >= 0:
            reason = f"its own record expired {expired_s:.0f} s ago: its clock or the clock of this machine is wrong"
            self._transport.trust.rejections.note("records", peer, reason)
        elif held is None or record.expiration_time > held.expiration_time:
            self._held[peer] = record

    def _valid(self, entries: Any, *, by: str) -> dict[str, DHTRecord]:
        """Return the valid records among the entries that the peer `by` sent, keyed by owner."""
        well_formed = [entry for entry in entries if is_item(entry)] if isinstance(entries, list) else []
        records = [self._record(*entry) for entry in well_formed[:MAX_PEERS]]
        return {_owner(record): record for record in self._records.valid_records(records, by=by)}

    def _current(self) -> list[DHTRecord]:
        """Drop records that have expired or whose owner is no longer allowed. Return the rest, sorted by owner."""
        allow, now = self._transport.trust.allow, time.time()
        held = self._held.items()
        self._held = {owner: record for owner, record in held if owner in allow and record.expiration_time > now}
        return [self._held[owner] for owner in sorted(self._held)]

    def _others(self) -> list[str]:
        return sorted(self._transport.trust.allow.admitted - {self._transport.peer_id})

    def _record(self, owner: str, value: bytes, expires: float) -> DHTRecord:
        return DHTRecord(self._key, MSGPackSerializer.dumps(owner), value, expires)

    def _is_own(self, record: DHTRecord) -> bool:
        return _owner(record) == self._transport.peer_id

    def _unpacked(self, record: DHTRecord) -> tuple[Any, Any, float]:
        return _owner(record), MSGPackSerializer.loads(self._records.strip_value(record)), record.expiration_time


def _owner(record: DHTRecord) -> Any:
    return MSGPackSerializer.loads(record.subkey)


def _packed(record: DHTRecord) -> list[Any]:
    return [_owner(record), record.value, record.expiration_time]
