"""What may be stored in the DHT of a swarm: small records of one peer each, which it signed and which soon expire.

    key | subkey: the peer's id | value | expiration  ->  value | signature over (key, subkey, value, expiration)

A node checks a record when another one wants it stored, and a reader when it is told one, so what is refused here lies
on no honest node and reaches no reader. The key's hash is the run of the signature: a record is of one run, and any
node can check those of any. A later record of the same peer replaces an earlier one, never the other way round, so an
old one cannot be shown again after a withdrawal.

A signature is checked last, once for the same record, and so many a second of one peer: it is what costs.
In an open run anybody can make many identities; a key never holds more of them than can be read (storage.py), and an
allow-list keeps them out.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

import msgpack
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import MSGPackSerializer

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.access.rate_limits import Budget, Rate
from outerloop.swarm.access.signatures import SIGNATURE_BYTES, public_key_of
from outerloop.swarm.timeouts import ROSTER_CLOCKS_S, ROSTER_EXPIRY_S, ROSTER_LEAST_S
from outerloop.swarm.validation import MAX_PEERS, MalformedMessage

CONTEXT = "record"
MAX_RECORD_BYTES = 8 * 1024
MAX_OWNER_BYTES = 64
"""Of a subkey: a peer id of 52 letters, packed."""
CHECKED = 4 * MAX_PEERS
"""Records that are known to be right or wrong: of all peers of a run, from several nodes, old and new."""
SIGNATURES = Rate(burst=2 * MAX_PEERS, per_s=MAX_PEERS / ROSTER_LEAST_S)
"""That one remote may have checked: whoever tells a roster tells the records of all peers, each new every 5 s at most.
One takes 0.1 ms: 2 % of a core."""
SIGNATURES_OF_STRANGERS = Rate(burst=4 * MAX_PEERS, per_s=2 * MAX_PEERS / ROSTER_LEAST_S)


class SignedRecords(RecordValidatorBase):
    """The validator of one peer's DHT node. `is_member`: whose budget is its own, by peer id."""

    def __init__(self, trust: AccessControl, *, is_member: Callable[[str], bool] = lambda peer_id: False) -> None:
        self.trust = trust
        self._budget = Budget(SIGNATURES, SIGNATURES_OF_STRANGERS, is_member=is_member)
        self._checked: OrderedDict[bytes, bool] = OrderedDict()  # whether it is signed, by what identifies a record

    def sign_value(self, record: DHTRecord) -> bytes:
        value = record.value + self.trust.signatures.sign(CONTEXT, record.key, *_fields(record, record.value))
        self._remember(_digest(record, value), True)
        return value

    def strip_value(self, record: DHTRecord) -> bytes:
        return record.value[:-SIGNATURE_BYTES]

    def validate(self, record: DHTRecord) -> bool:
        return self.accepts(record)

    def accepts(self, record: DHTRecord, *, by: str = "") -> bool:
        """Return whether a record is right; else it is refused. `by`: the peer that shows it, if not its owner."""
        owner = _owner(record.subkey)
        teller = by or owner or "somebody"
        reason = self._at_first_sight(record, owner)
        if not reason and (lacking := self._unchecked(record, teller)):
            teller, reason = lacking, f"more than {self._budget.per_s(lacking):.0f} signatures a second to be checked"
        reason = reason or self._on_inspection(record, owner)
        if reason:
            self.trust.refusals.note("records", teller, reason)
        return not reason

    def right_of(self, records: Iterable[DHTRecord], *, by: str) -> Iterator[DHTRecord]:
        """Yield the right ones of the records that a peer tells, up to the first forged one: honest peers hold none."""
        for record in records:
            if self.accepts(record, by=by):
                yield record
            elif self._checked.get(_digest(record, record.value)) is False:
                return

    def _at_first_sight(self, record: DHTRecord, owner: str) -> str:
        """Why it is refused before its signature is looked at, or nothing."""
        life_s = record.expiration_time - time.time()
        if not owner:
            return "a record that names no peer"
        if owner not in self.trust.allow:
            return f"a record of a peer that {self.trust.allow.why_not(owner)}"
        if not SIGNATURE_BYTES < len(record.value) <= MAX_RECORD_BYTES:
            return f"a record of {len(record.value)} bytes, up to {MAX_RECORD_BYTES} are allowed"
        if not life_s <= ROSTER_EXPIRY_S + ROSTER_CLOCKS_S:
            return f"a record that lives for {life_s:.0f} s, up to {ROSTER_EXPIRY_S:.0f} are allowed"
        return ""

    def _unchecked(self, record: DHTRecord, teller: str) -> str:
        """Whose budget is too small to have its signature checked; empty when it can be, or has been."""
        return "" if _digest(record, record.value) in self._checked else self._budget.spend(teller)

    def _on_inspection(self, record: DHTRecord, owner: str) -> str:
        """Why it is refused after its signature was looked at, or nothing."""
        digest = _digest(record, record.value)
        if digest not in self._checked:
            self._remember(digest, self._is_signed(record, owner))
        if not self._checked[digest]:
            return "a record that this peer did not sign"
        return "" if _readable(record.value[:-SIGNATURE_BYTES]) else "a record that is unreadable"

    def _is_signed(self, record: DHTRecord, owner: str) -> bool:
        value, signature = record.value[:-SIGNATURE_BYTES], record.value[-SIGNATURE_BYTES:]
        return self.trust.signatures.right(signature, CONTEXT, record.key, *_fields(record, value), by=owner)

    def _remember(self, digest: bytes, signed: bool) -> None:
        self._checked[digest] = signed
        if len(self._checked) > CHECKED:
            self._checked.popitem(last=False)


def _fields(record: DHTRecord, value: bytes) -> tuple[bytes, bytes, float]:
    return record.subkey, value, record.expiration_time


def _digest(record: DHTRecord, value: bytes) -> bytes:
    """What no other record has. `value` with the signature."""
    return hashlib.sha256(msgpack.packb([record.key, *_fields(record, value)])).digest()


def _owner(subkey: bytes) -> str:
    """The peer id that a subkey is, packed as readers will pack it; empty for any other."""
    if len(subkey) > MAX_OWNER_BYTES:
        return ""
    try:
        peer_id = msgpack.unpackb(subkey)
        public_key_of(peer_id)
    except (MalformedMessage, ValueError, TypeError):
        return ""
    return peer_id if MSGPackSerializer.dumps(peer_id) == subkey else ""


def _readable(value: bytes) -> bool:
    """Whether it unpacks, to plain values: what hivemind's extensions nest, its decoder follows as deep as they go."""
    try:
        msgpack.unpackb(value, ext_hook=_refuse)
    except ValueError:  # whatever msgpack makes of other bytes
        return False
    return True


def _refuse(code: int, data: bytes) -> None:
    raise ValueError("a record is of plain values")
