"""What may be stored in the DHT of a swarm: small records of one peer each, which it signed and which soon expire.

    key | subkey: the peer's id | value | expiration  ->  value | signature over (key, subkey, value, expiration)

hivemind asks a node's validator when another node wants it to store something, and when it reads what others stored, so
what is refused here lies on no honest node and reaches no reader. The key's hash is the run of the signature: a record
is of one run, and any node can check those of any. A later record of the same peer replaces an earlier one, never the
other way round, so an old one cannot be shown again after a withdrawal.

One bad record makes a reader pass over all that a node tells of that key; the other nodes that hold it are asked too.
In an open run anybody can make many identities; a key never holds more of them than can be read (shelf.py), and an
allow-list keeps them out.
"""

from __future__ import annotations

import time

import msgpack
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import MSGPackSerializer

from outerloop.swarm.fields import BadMessage
from outerloop.swarm.signatures import SIGNATURE_BYTES, public_key_of
from outerloop.swarm.timeouts import ROSTER_CLOCKS_S, ROSTER_EXPIRY_S
from outerloop.swarm.trust import Trust

CONTEXT = "record"
MAX_RECORD_BYTES = 8 * 1024


class SignedRecords(RecordValidatorBase):
    """The validator of one peer's DHT node."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    def sign_value(self, record: DHTRecord) -> bytes:
        return record.value + self._trust.signatures.sign(CONTEXT, record.key, *_fields(record, record.value))

    def strip_value(self, record: DHTRecord) -> bytes:
        return record.value[:-SIGNATURE_BYTES]

    def validate(self, record: DHTRecord) -> bool:
        owner = _owner(record.subkey)
        reason = self._against(record, owner)
        if reason:
            self._trust.refusals.note("records", owner or "somebody", reason)
        return not reason

    def _against(self, record: DHTRecord, owner: str) -> str:
        """Why it is refused, or nothing; what is cheap to find comes first."""
        life_s = record.expiration_time - time.time()
        if not owner:
            return "a record that names no peer"
        if owner not in self._trust.allow:
            return "a record of a peer that is not in exchange.allow"
        if not SIGNATURE_BYTES < len(record.value) <= MAX_RECORD_BYTES:
            return f"a record of {len(record.value)} bytes, up to {MAX_RECORD_BYTES} are allowed"
        if not life_s <= ROSTER_EXPIRY_S + ROSTER_CLOCKS_S:
            return f"a record that lives for {life_s:.0f} s, up to {ROSTER_EXPIRY_S:.0f} are allowed"
        value, signature = record.value[:-SIGNATURE_BYTES], record.value[-SIGNATURE_BYTES:]
        if not self._trust.signatures.right(signature, CONTEXT, record.key, *_fields(record, value), by=owner):
            return "a record that this peer did not sign"
        return "" if _readable(value) else "a record that is unreadable"


def _fields(record: DHTRecord, value: bytes) -> tuple[bytes, bytes, float]:
    return record.subkey, value, record.expiration_time


def _owner(subkey: bytes) -> str:
    """The peer id that a subkey is; empty for any other."""
    try:
        peer_id = msgpack.unpackb(subkey)
        public_key_of(peer_id)
    except (BadMessage, ValueError, TypeError):
        return ""
    return peer_id


def _readable(value: bytes) -> bool:
    """Whether hivemind will be able to unpack it: if it cannot, the whole read fails."""
    try:
        MSGPackSerializer.loads(value)
    except Exception:  # whatever a stranger's bytes make of hivemind's own types
        return False
    return True
