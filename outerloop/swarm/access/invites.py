"""Invites to a run with an allow-list: a listed peer admits one key of another machine, without editing any list.

    invite    signed by a listed peer          the holder of this one-time key may admit one peer to the run
    binding   signed with the one-time key     the invite is used for this peer

A token is the text that contains an invite and the private one-time key. Anyone who has the token can use it, so it is
a secret. The machine that uses the token does not send the private key to any peer. It sends the binding, which names
one peer only.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgpack
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from outerloop.swarm.access.signatures import Signatures, public_key_of
from outerloop.swarm.validation import (
    MAX_AMOUNT,
    MAX_NUMBER,
    MalformedMessage,
    checked_int,
    digest,
    peer_id,
    quote,
    row,
    signature,
    unpacked,
)

PREFIX = "oli1_"
"""First characters of a token, with the version of its format."""
MAX_TOKEN = 1024
"""Maximum number of characters of a token. A token for a run with a name of ten characters has about 400."""
MAX_RUN = 64
"""Maximum number of characters of a run id."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
"""Form of the name of an invite, which is shown in logs and lists."""
SEED_BYTES = 32


@dataclass(frozen=True)
class Invite:
    """A listed peer's permission to admit one peer.

    issuer     id of the listed peer
    key        one-time public key, in the form of a peer id
    listed     `digest_of_list` of the issuer's exchange.allow
    name       name for lists and logs; "" if the issuer gave none
    expires_s  Unix time after which the invite cannot be used
    rounds     number of commits in which the admitted peer may take part; 0: no limit. Each fragment of a round has a
               commit. A gossip run has none, so this is the number of rounds
    """

    run: str
    issuer: str
    key: str
    listed: bytes
    name: str
    expires_s: int
    rounds: int
    signature: bytes = b""

    def signed(self, issuer: Signatures) -> Invite:
        """Return the invite with the issuer's signature."""
        return replace(self, signature=issuer.sign("invite", self.run, *self._statement))

    def is_signed(self, signatures: Signatures) -> bool:
        return signatures.verify(self.signature, "invite", self.run, *self._statement, by=self.issuer)

    @property
    def digest(self) -> bytes:
        """sha256 of the statement, without the signature. It identifies the invite."""
        return hashlib.sha256(msgpack.packb([self.run, *self._statement])).digest()

    @property
    def _statement(self) -> tuple[str, str, bytes, str, int, int]:
        return self.issuer, self.key, self.listed, self.name, self.expires_s, self.rounds

    def to_list(self) -> list[Any]:
        return [self.run, *self._statement, self.signature]

    @staticmethod
    def from_list(value: Any) -> Invite:
        """Parse the result of `to_list`. Raises MalformedMessage if it is invalid. The signature is not checked."""
        run, issuer, key, listed, name, expires_s, rounds, signed = row(value, 8, "an invite must have 8 values")
        if type(name) is not str or not (name == "" or NAME.fullmatch(name)):
            raise MalformedMessage(
                f"the name of an invite must have at most 32 letters, digits, _ . or -; got {quote(name)}"
            )
        return Invite(
            run_id(run),
            peer_id(issuer, "the issuer of an invite"),
            peer_id(key, "the key of an invite"),
            digest(listed, "the list of an invite"),
            name,
            checked_int(expires_s, "the expiry of an invite", maximum=MAX_AMOUNT),
            checked_int(rounds, "the rounds of an invite", maximum=MAX_NUMBER),
            signature(signed, "the signature of an invite"),
        )


@dataclass(frozen=True)
class Token:
    """An invite and the seed of its one-time private key. A token is a secret."""

    invite: Invite
    seed: bytes

    @staticmethod
    def new(issuer: Signatures, *, run: str, listed: Iterable[str], name: str, expires_s: int, rounds: int) -> Token:
        """Return a new token that a listed peer issues. `listed`: that peer's exchange.allow."""
        key = Ed25519PrivateKey.generate()
        invite = Invite(
            run, issuer.peer_id, Signatures(key).peer_id, digest_of_list(listed), name, expires_s, rounds
        ).signed(issuer)
        return Token(invite, key.private_bytes_raw())

    @property
    def signatures(self) -> Signatures:
        """The object that signs with the one-time key."""
        return Signatures(Ed25519PrivateKey.from_private_bytes(self.seed))

    def to_text(self) -> str:
        content = base64.urlsafe_b64encode(msgpack.packb([self.invite.to_list(), self.seed]))
        return PREFIX + content.decode().rstrip("=")

    @staticmethod
    def from_text(text: str) -> Token:
        """Parse a token. Raises MalformedMessage unless it is complete, signed by its issuer, and has the right key."""
        content = text.removeprefix(PREFIX)
        if content == text or len(text) > MAX_TOKEN or not re.fullmatch(r"[A-Za-z0-9_-]*", content):
            raise MalformedMessage(f"an invite starts with {PREFIX} and has at most {MAX_TOKEN} characters")
        try:
            packed = base64.urlsafe_b64decode(content + "=" * (-len(content) % 4))
            parts = unpacked(packed, "the invite")
        except ValueError as error:
            raise MalformedMessage("the invite is incomplete") from error
        invite, seed = row(parts, 2, "an invite must have two parts")
        if type(seed) is not bytes or len(seed) != SEED_BYTES:
            raise MalformedMessage("the invite is incomplete")
        token = Token(Invite.from_list(invite), seed)
        if not token.invite.is_signed(token.signatures) or token.signatures.peer_id != token.invite.key:
            raise MalformedMessage("the invite is damaged")
        return token

    def binding(self, peer: str) -> Binding:
        """Return the statement that the token is used for the peer with this id."""
        invite = self.invite
        return Binding(invite, peer, self.signatures.sign("invite_binding", invite.run, invite.digest, peer))

    def look(self, visitor: str) -> bytes:
        """Return the proof that the peer `visitor`, which wants to see the settings of the run, has this token."""
        return self.signatures.sign("invite_look", self.invite.run, self.invite.digest, visitor)


def may_look(invite: Invite, visitor: str, proof: object, signatures: Signatures) -> bool:
    """Return whether `proof` is the result of `Token.look` for this visitor."""
    return signatures.verify(proof, "invite_look", invite.run, invite.digest, visitor, by=invite.key)


@dataclass(frozen=True)
class Binding:
    """The statement, signed with a one-time key, that its invite is used for the peer with the id `peer`."""

    invite: Invite
    peer: str
    signature: bytes

    def is_signed(self, signatures: Signatures) -> bool:
        """Return whether the issuer's and the one-time key's signatures are valid."""
        invite, peer = self.invite, self.peer
        signed = signatures.verify(self.signature, "invite_binding", invite.run, invite.digest, peer, by=invite.key)
        return signed and invite.is_signed(signatures)

    def to_list(self) -> list[Any]:
        return [self.invite.to_list(), self.peer, self.signature]

    @staticmethod
    def from_list(value: Any) -> Binding:
        """Parse the result of `to_list`. Raises MalformedMessage if it is invalid. No signature is checked."""
        invite, peer, signed = row(value, 3, "a binding must have 3 values")
        public_key_of(peer_id(peer, "an invited peer"))
        return Binding(Invite.from_list(invite), peer, signature(signed, "the signature of a binding"))


def digest_of_list(listed: Iterable[str]) -> bytes:
    """Return the sha256 of a list of peer ids. It does not depend on their order."""
    return hashlib.sha256(msgpack.packb(sorted(set(listed)))).digest()


def run_id(value: Any) -> str:
    """Check that `value` is a run id that an invite may have, and return it."""
    if type(value) is not str or not 1 <= len(value) <= MAX_RUN or not value.isprintable():
        raise MalformedMessage(f"a run id must have 1 to {MAX_RUN} printable characters; got {quote(value)}")
    return value
