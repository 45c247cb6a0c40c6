"""Shares of an assembly, sealed by their owners: a collector can leave somebody out, and cannot speak for it.

What is not signed by its owner for this assembly (sealed.py) is refused by name, on every peer alike.
"""

from __future__ import annotations

from outerloop.swarm.membership import Membership
from outerloop.swarm.sealed import SEAL_BYTES, SHARE, beside, doubt, sealed
from outerloop.swarm.transport import Transport


class Shares:
    """Seals as this peer, and opens what others sealed."""

    def __init__(self, transport: Transport, membership: Membership) -> None:
        self._transport = transport
        self._members = membership

    async def seal(self, number: int, blob: bytes) -> bytes:
        """What travels of what this peer brings to an assembly."""
        signatures, sitting = self._transport.trust.signatures, self._members.sitting
        name = self._members.names[self._transport.peer_id]
        return await beside(
            len(blob), lambda: sealed(blob, signatures, sitting=sitting, number=number, peer=name, purpose=SHARE)
        )

    async def open(self, number: int, owner: str, content: bytes) -> bytes | None:
        """What a member (peer id) brought to this assembly; None: it did not sign that."""
        trust, name, sitting = self._transport.trust, self._members.names[owner], self._members.sitting
        if why := await doubt(content, trust.signatures, sitting=sitting, number=number, peer=name, purpose=SHARE):
            trust.refusals.note("payloads", name, why)
            return None
        return await beside(len(content), lambda: content[SEAL_BYTES:])
