"""Ed25519 signatures that third parties can verify. A peer id is derived from the key that signs.

    peer id     base58 of 00 24 (identity multihash of 36 bytes) | 08 01 12 20 (Ed25519, 32 bytes) | public key
    signature   over DOMAIN | msgpack of [context, scope, field, ...]     (|: concatenation of bytes)

A stream proves only the identity of the peer at its remote end, so data that is forwarded, stored or read from the DHT
needs a signature. The signed bytes begin with the context (the purpose of the statement) and the scope, and msgpack
prefixes each field with its length. So a signature made for one purpose or scope is not valid for another. The scope is
that within which the statement is valid: a session, a run, or a key of the DHT. Statements about a round contain the
number of its commit as a field.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import cast

import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hivemind.p2p import PeerID

from outerloop.swarm.access.identity import read_identity
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.validation import SIGNATURE_BYTES, MalformedMessage, id_of, quote

DOMAIN = b"outerloop/1/signature\n"
PEER_ID_PREFIX = bytes([0x00, 36, 0x08, 0x01, 0x12, 32])
ED25519_ID = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")
Field = bytes | str | int | float
Witness = Callable[[str, str | bytes, tuple[Field, ...], bytes], None]
"""Callback for each valid signature, with the arguments (context, scope, fields, signature)."""


class Signatures:
    """Signs as this peer, and verifies other peers' signatures.

    Args:
        key: this peer's private key.
        public_of: returns the public key of a peer id, or raises MalformedMessage. If None, the key is read from the
            id.

    The attribute `witness` is called with each signature that `verify` finds valid.
    """

    def __init__(self, key: Ed25519PrivateKey, *, public_of: Callable[[str], Ed25519PublicKey] | None = None) -> None:
        self._key = key
        self._public_of = public_of or public_key_of
        self.witness: Witness = lambda context, scope, fields, signature: None

    @staticmethod
    def of(identity_path: str | os.PathLike[str]) -> Signatures:
        """Return the Signatures for an identity file. Raises UserError if Identity.read fails."""
        return Signatures(read_identity(Path(identity_path)))

    @property
    def peer_id(self) -> str:
        return peer_id_of(self._key.public_key())

    def sign(self, context: str, scope: str | bytes, *fields: Field) -> bytes:
        """Return this peer's deterministic 64-byte signature of the context, scope and fields."""
        return self._key.sign(_message(context, scope, fields))

    def verify(self, signature: object, context: str, scope: str | bytes, *fields: Field, by: str) -> bool:
        """Return whether `signature` is a valid signature of the context, scope and fields by the peer `by`.

        Returns False if the signature or the peer id is malformed.
        """
        if type(signature) is not bytes or len(signature) != SIGNATURE_BYTES:
            return False
        try:
            self._public_of(by).verify(signature, _message(context, scope, fields))
        except (MalformedMessage, InvalidSignature):
            return False
        self.witness(context, scope, fields, signature)
        return True


class KeySigner:
    """Signs and verifies consensus statements. `session`: session id. `own`: name under which this peer signs.

    The signature covers the signer's name, followed by the fields of the statement (statements.py), so it counts for
    only one member of the roster. An accept also contains its view, so accepts of one commit in different views do not
    add up to a majority.
    """

    def __init__(self, signatures: Signatures, *, session: str, own: str) -> None:
        self._signatures = signatures
        self._session = session
        self._own = own

    @property
    def session(self) -> str:
        return self._session

    def sign(self, statement: Statement) -> bytes:
        context, *fields = statement
        return self._signatures.sign(cast(str, context), self._session, self._own, *fields)

    def verify(self, peer: str, statement: Statement, signature: bytes) -> bool:
        context, *fields = statement
        return self._signatures.verify(signature, cast(str, context), self._session, peer, *fields, by=id_of(peer))


@lru_cache(maxsize=1024)
def public_key_of(peer_id: str) -> Ed25519PublicKey:
    """Return the public key encoded in a peer id. Raises MalformedMessage if it is not the id of an Ed25519 key."""
    if not ED25519_ID.fullmatch(peer_id):
        raise MalformedMessage(f"an Ed25519 peer id has 52 characters and starts with 12D3KooW; got {quote(peer_id)}")
    content = PeerID.from_base58(peer_id).to_bytes()
    if not is_peer_id(content):
        raise MalformedMessage(f"{peer_id} does not contain an Ed25519 key")
    return Ed25519PublicKey.from_public_bytes(content[len(PEER_ID_PREFIX) :])


def is_peer_id(raw: bytes) -> bool:
    """Return whether `raw` is the binary form of a peer id that `public_key_of` accepts."""
    return len(raw) == len(PEER_ID_PREFIX) + 32 and raw.startswith(PEER_ID_PREFIX)


def peer_id_of(key: Ed25519PublicKey) -> str:
    return PeerID(PEER_ID_PREFIX + key.public_bytes_raw()).to_base58()


def _message(context: str, scope: str | bytes, fields: tuple[Field, ...]) -> bytes:
    return DOMAIN + msgpack.packb([context, scope, *fields])
