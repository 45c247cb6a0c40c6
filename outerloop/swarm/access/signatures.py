"""Who said it, so that a third one can check: Ed25519 signatures by the key that a peer id is made of.

    peer id     base58 of 00 24 (identity multihash of 36 bytes) | 08 01 12 20 (Ed25519, 32 bytes) | public key
    signature   over DOMAIN | msgpack of [context, run, field, ...]

A stream proves who is at its other end, and no more: what is passed on, kept, or read from the DHT needs a signature.
Context and run are in front of every field, and msgpack puts a length before each, so that nothing that was signed
for one purpose, run or round can be shown as something else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hivemind.p2p import PeerID

from outerloop.swarm.access.identity import read_identity
from outerloop.swarm.validation import SIGNATURE_BYTES, MalformedMessage, quote

DOMAIN = b"outerloop/1/signature\n"
PEER_ID_PREFIX = bytes([0x00, 36, 0x08, 0x01, 0x12, 32])
ED25519_ID = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")
Field = bytes | str | int | float
Witness = Callable[[str, str | bytes, tuple[Field, ...], bytes], None]
"""Told of what somebody has signed: context, run, fields, signature."""


class Signatures:
    """Signs as this peer, and checks what others signed.

    Args:
        key: of this peer's identity.
        public_of: peer id -> public key, or MalformedMessage; libp2p's own way unless peers are named otherwise.

    `witness`: told of everything that `right` finds signed.
    """

    def __init__(self, key: Ed25519PrivateKey, *, public_of: Callable[[str], Ed25519PublicKey] | None = None) -> None:
        self._key = key
        self._public_of = public_of or public_key_of
        self.witness: Witness = lambda context, run, fields, signature: None

    @staticmethod
    def of(identity_path: str | os.PathLike[str]) -> Signatures:
        """Of the peer with this identity file. Raises UserError for a file of another kind."""
        return Signatures(read_identity(Path(identity_path)))

    @property
    def peer_id(self) -> str:
        return peer_id_of(self._key.public_key())

    def sign(self, context: str, run: str | bytes, *fields: Field) -> bytes:
        """64 bytes, the same for the same."""
        return self._key.sign(_message(context, run, fields))

    def right(self, signature: object, context: str, run: str | bytes, *fields: Field, by: str) -> bool:
        """Whether the peer with this id has signed this. Whatever a stranger sends is an answer, never an error."""
        if type(signature) is not bytes or len(signature) != SIGNATURE_BYTES:
            return False
        try:
            self._public_of(by).verify(signature, _message(context, run, fields))
        except (MalformedMessage, InvalidSignature):
            return False
        self.witness(context, run, fields, signature)
        return True


@lru_cache(maxsize=1024)
def public_key_of(peer_id: str) -> Ed25519PublicKey:
    """The key that a peer id is made of. Raises MalformedMessage: it is no id of an Ed25519 key."""
    if not ED25519_ID.fullmatch(peer_id):
        raise MalformedMessage(f"the id of an Ed25519 peer is 52 letters from 12D3KooW on; came {quote(peer_id)}")
    content = PeerID.from_base58(peer_id).to_bytes()
    if not is_peer_id(content):
        raise MalformedMessage(f"{peer_id} holds no Ed25519 key")
    return Ed25519PublicKey.from_public_bytes(content[len(PEER_ID_PREFIX) :])


def is_peer_id(raw: bytes) -> bool:
    """Return whether these are the bytes of an id that `public_key_of` takes."""
    return len(raw) == len(PEER_ID_PREFIX) + 32 and raw.startswith(PEER_ID_PREFIX)


def peer_id_of(key: Ed25519PublicKey) -> str:
    return PeerID(PEER_ID_PREFIX + key.public_bytes_raw()).to_base58()


def _message(context: str, run: str | bytes, fields: tuple[Field, ...]) -> bytes:
    return DOMAIN + msgpack.packb([context, run, *fields])
