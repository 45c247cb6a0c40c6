"""Shares of an assembly, sealed by their owners: whoever passes one on cannot pass off anything else as it."""

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
        """Return what travels of what this peer brings to an assembly."""
        signatures, sitting = self._transport.trust.signatures, self._members.sitting
        name = self._members.names[self._transport.peer_id]
        return await beside(
            len(blob), lambda: sealed(blob, signatures, sitting=sitting, number=number, peer=name, purpose=SHARE)
        )

    async def open(self, number: int, owner: str, content: bytes) -> tuple[bytes, str]:
        """Return what a member (peer id) brought to this assembly and "", or nothing and why it did not."""
        trust, name, sitting = self._transport.trust, self._members.names[owner], self._members.sitting
        why = await doubt(content, trust.signatures, sitting=sitting, number=number, peer=name, purpose=SHARE)
        if why:
            return b"", f"{why} ({name})"
        return await beside(len(content), lambda: content[SEAL_BYTES:]), ""
