"""A member's share in a final gather, signed by its owner, so that peers that relay it cannot change it.

    share       [owner's peer id, sha256 of the blob, its length in bytes, signature]
    signature   over ("share", session id, number of the gather, the owner's name, sha256, length)

An honest owner signs one share per gather. Two different shares prove that the owner is malicious.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.membership.formation import Formation
from outerloop.swarm.p2p.framing import Unreadable
from outerloop.swarm.validation import MAX_AMOUNT, MalformedMessage, checked_int, digest, items, peer_id, signature

PURPOSE = "share"


@dataclass(frozen=True)
class SignedShare:
    """A share as stated by its owner. `owner`: peer id. `sha`, `length`: sha256 and length in bytes of the blob."""

    owner: str
    sha: bytes
    length: int
    signature: bytes

    def to_list(self) -> list[Any]:
        """Return the share in its wire format."""
        return [self.owner, self.sha, self.length, self.signature]

    @classmethod
    def from_list(cls, value: Any) -> SignedShare:
        """Parse a share from a peer. Raises Unreadable if it is malformed."""
        try:
            owner, sha, length, signed = items(value, "a share")
            return cls(
                peer_id(owner, "a share's owner"),
                digest(sha, "a share's sha256"),
                checked_int(length, "a share's length", maximum=MAX_AMOUNT),
                signature(signed, "a share's signature"),
            )
        except (MalformedMessage, ValueError) as bad:
            raise Unreadable(str(bad)) from bad

    def differs(self, other: SignedShare) -> bool:
        """Return whether `other`, a share of the same owner, states a different blob."""
        return (self.sha, self.length) != (other.sha, other.length)


def signed(
    own: str, number: int, sha: bytes, length: int, *, members: Formation, signatures: Signatures
) -> SignedShare:
    """Sign and return the share of this peer (id `own`) in final gather `number`."""
    statement = PURPOSE, members.session, number, members.names[own], sha, length
    return SignedShare(own, sha, length, signatures.sign(*statement))


def is_signed(share: SignedShare, number: int, *, members: Formation, signatures: Signatures) -> bool:
    """Return whether the owner signed this share for final gather `number`. The owner must be a member."""
    statement = PURPOSE, members.session, number, members.names[share.owner], share.sha, share.length
    return signatures.verify(share.signature, *statement, by=share.owner)
