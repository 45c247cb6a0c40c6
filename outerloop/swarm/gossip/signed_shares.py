"""What a member brings to an assembly, as its owner states it and signs it: who passes the word on cannot change it.

    share       [owner's peer id, sha256 of the blob, its length in bytes, signature]
    signature   over ("share", sitting, number of the assembly, the owner's name, sha256, length)

An honest owner signs one share for an assembly. Whoever holds two that differ knows that the owner lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.membership.formation import Formation
from outerloop.swarm.p2p.framing import Unreadable
from outerloop.swarm.validation import MAX_AMOUNT, MalformedMessage, digest, items, peer_id, signature, whole

PURPOSE = "share"


@dataclass(frozen=True)
class SignedShare:
    """`owner`: peer id. `sha`, `length` (bytes): of its blob."""

    owner: str
    sha: bytes
    length: int
    signature: bytes

    def to_list(self) -> list[Any]:
        """As it travels."""
        return [self.owner, self.sha, self.length, self.signature]

    @classmethod
    def from_list(cls, value: Any) -> SignedShare:
        """What a peer told. Raises Unreadable."""
        try:
            owner, sha, length, signed = items(value, "a share")
            return cls(
                peer_id(owner, "a share's owner"),
                digest(sha, "a share's sha256"),
                whole(length, "a share's length", most=MAX_AMOUNT),
                signature(signed, "a share's signature"),
            )
        except (MalformedMessage, ValueError) as bad:
            raise Unreadable(str(bad)) from bad

    def differs(self, other: SignedShare) -> bool:
        """Whether the same owner signed another blob there."""
        return (self.sha, self.length) != (other.sha, other.length)


def signed(
    own: str, number: int, sha: bytes, length: int, *, members: Formation, signatures: Signatures
) -> SignedShare:
    """Return the share of this peer (`own`: its id) in an assembly."""
    said = PURPOSE, members.sitting, number, members.names[own], sha, length
    return SignedShare(own, sha, length, signatures.sign(*said))


def is_signed(share: SignedShare, number: int, *, members: Formation, signatures: Signatures) -> bool:
    """Whether its owner, a member, signed this share for this assembly."""
    said = PURPOSE, members.sitting, number, members.names[share.owner], share.sha, share.length
    return signatures.right(share.signature, *said, by=share.owner)
