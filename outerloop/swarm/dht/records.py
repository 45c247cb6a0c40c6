"""The DHT's records: small, short-lived, and signed by the peers that they describe.

    key | subkey: the peer's id | value | expiration  ->  value | signature over (key, subkey, value, expiration)

Nodes check a record before they store it, and readers check it when they receive it. So a record that this validator
refuses is not stored on any honest node and does not reach any reader. The signature covers the key, which is a hash of
the run's name: a record belongs to one run, and any node can check the records of any run. A record can only replace a
record of the same peer that expires earlier, so a record that its owner has withdrawn cannot be replayed.

Verifying the signature is the expensive check. It comes last, happens once per record, and is rate-limited per peer. In
an open run, one machine can create many identities; even then, a key never holds more records than can be read
(storage.py). An allow-list keeps such identities out.
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
"""Maximum size of a subkey, which is a packed peer id of 52 characters."""
CHECKED = 4 * MAX_PEERS
"""Number of records whose check results are cached: enough for the old and new records of all peers in a run."""
SIGNATURES = Rate(burst=2 * MAX_PEERS, per_s=MAX_PEERS / ROSTER_LEAST_S)
"""Rate limit for signature checks per remote peer. A roster contains the records of all peers, and each record changes
at most every 5 s. A check takes 0.1 ms, so checks at this rate use 2 % of a core."""
SIGNATURES_OF_STRANGERS = Rate(burst=4 * MAX_PEERS, per_s=2 * MAX_PEERS / ROSTER_LEAST_S)


class SignedRecords(RecordValidatorBase):
    """The record validator of one peer's DHT node.

    `is_member`: returns whether a peer id belongs to a member. Each peer has a budget for signature checks; all
    non-members together have a second one.
    """

    def __init__(self, trust: AccessControl, *, is_member: Callable[[str], bool] = lambda peer_id: False) -> None:
        self.trust = trust
        self._budget = Budget(SIGNATURES, SIGNATURES_OF_STRANGERS, is_member=is_member)
        self._checked: OrderedDict[bytes, bool] = OrderedDict()  # record digest -> whether its signature is valid

    def sign_value(self, record: DHTRecord) -> bytes:
        value = record.value + self.trust.signatures.sign(CONTEXT, record.key, *_fields(record, record.value))
        self._remember(_digest(record, value), True)
        return value

    def strip_value(self, record: DHTRecord) -> bytes:
        return record.value[:-SIGNATURE_BYTES]

    def validate(self, record: DHTRecord) -> bool:
        return self.accepts(record)

    def accepts(self, record: DHTRecord, *, by: str = "") -> bool:
        """Return whether a record is valid. If not, log the refusal. `by`: the sender; by default, the owner."""
        owner = _owner(record.subkey)
        sender = by or owner or "unknown peer"
        reason = self._at_first_sight(record, owner)
        if not reason and (lacking := self._unchecked(record, sender)):
            sender, reason = lacking, f"more than {self._budget.per_s(lacking):.0f} signature checks per second"
        reason = reason or self._on_inspection(record, owner)
        if reason:
            self.trust.rejections.note("records", sender, reason)
        return not reason

    def valid_records(self, records: Iterable[DHTRecord], *, by: str) -> Iterator[DHTRecord]:
        """Yield the valid records among those that the peer `by` sent. Stop at the first forged one.

        An honest peer would not send a forged record.
        """
        for record in records:
            if self.accepts(record, by=by):
                yield record
            elif self._checked.get(_digest(record, record.value)) is False:
                return

    def _at_first_sight(self, record: DHTRecord, owner: str) -> str:
        """Return why a record is refused before its signature is checked, or "" if it is not refused yet."""
        life_s = record.expiration_time - time.time()
        if not owner:
            return "a record without a valid owner"
        if owner not in self.trust.allow:
            return f"a record of a peer that {self.trust.allow.why_not(owner)}"
        if not SIGNATURE_BYTES < len(record.value) <= MAX_RECORD_BYTES:
            return f"a record of {len(record.value)} bytes; at most {MAX_RECORD_BYTES} are allowed"
        if not life_s <= ROSTER_EXPIRY_S + ROSTER_CLOCKS_S:
            return f"a record that expires in {life_s:.0f} s; at most {ROSTER_EXPIRY_S:.0f} s are allowed"
        return ""

    def _unchecked(self, record: DHTRecord, sender: str) -> str:
        """Charge the sender for a signature check, unless the result of the check is cached.

        Return "" if the check may run. If not, return whose budget is exhausted: the sender's or all non-members'.
        """
        return "" if _digest(record, record.value) in self._checked else self._budget.spend(sender)

    def _on_inspection(self, record: DHTRecord, owner: str) -> str:
        """Return why a record is refused because of its signature or content, or "" if it passes."""
        digest = _digest(record, record.value)
        if digest not in self._checked:
            self._remember(digest, self._is_signed(record, owner))
        if not self._checked[digest]:
            return "a record that is not signed by its owner"
        return "" if _readable(record.value[:-SIGNATURE_BYTES]) else "an unreadable record"

    def _is_signed(self, record: DHTRecord, owner: str) -> bool:
        value, signature = record.value[:-SIGNATURE_BYTES], record.value[-SIGNATURE_BYTES:]
        return self.trust.signatures.verify(signature, CONTEXT, record.key, *_fields(record, value), by=owner)

    def _remember(self, digest: bytes, signed: bool) -> None:
        self._checked[digest] = signed
        if len(self._checked) > CHECKED:
            self._checked.popitem(last=False)


def _fields(record: DHTRecord, value: bytes) -> tuple[bytes, bytes, float]:
    return record.subkey, value, record.expiration_time


def _digest(record: DHTRecord, value: bytes) -> bytes:
    """Return a hash that identifies a record with the value `value`, which includes the signature."""
    return hashlib.sha256(msgpack.packb([record.key, *_fields(record, value)])).digest()


def _owner(subkey: bytes) -> str:
    """Return the peer id in a subkey, or "" if it contains no valid peer id or its encoding is not canonical."""
    if len(subkey) > MAX_OWNER_BYTES:
        return ""
    try:
        peer_id = msgpack.unpackb(subkey)
        public_key_of(peer_id)
    except (MalformedMessage, ValueError, TypeError):
        return ""
    return peer_id if MSGPackSerializer.dumps(peer_id) == subkey else ""


def _readable(value: bytes) -> bool:
    """Return whether `value` is msgpack data without extension types.

    Extension types must not reach hivemind's decoder, which follows nested ones to any depth.
    """
    try:
        msgpack.unpackb(value, ext_hook=_refuse)
    except ValueError:  # base class of all errors that unpackb raises for malformed bytes
        return False
    return True


def _refuse(code: int, data: bytes) -> None:
    raise ValueError("a record must not contain msgpack extension types")
