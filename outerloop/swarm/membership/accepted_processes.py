"""Decide which process of each peer is accepted if several use the same key (incarnations.py)."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from outerloop.swarm.access.access_control import RejectionLog
from outerloop.swarm.membership.incarnation_record import Incarnation, IncarnationStatements
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, Unreachable
from outerloop.swarm.timeouts import VIEW_S

logger = logging.getLogger(__name__)
MAX_KNOWN = 4096
"""Maximum number of peers whose processes are remembered: four times the maximum number of members. The peer that has
been silent longest is dropped first."""
MAX_REFUSED = 4
"""Number of refused processes remembered per peer. If a forgotten one returns, the accepted process is asked again."""


@dataclass
class _Known:
    """The known processes of one peer: the accepted one, and the refused ones.

    `refused` maps the nonce of each refused process to the objection that another process of the same key has sent
    against it, or to b"" if none has.
    """

    accepted: Incarnation
    refused: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)

    def refuse(self, other: Incarnation, objection: bytes = b"") -> None:
        self.refused[other.nonce] = objection or self.refused.get(other.nonce, b"")
        while len(self.refused) > MAX_REFUSED:
            self.refused.popitem(last=False)


class AcceptedProcesses:
    """Tracks which process of each peer is accepted.

    `ask` asks the accepted process of a peer about another process with its key, and returns the answer. It raises
    BrokenStream, Unreachable or TimeoutError if no answer arrives.
    """

    def __init__(
        self,
        statements: IncarnationStatements,
        rejections: RejectionLog,
        *,
        ask: Callable[[str, Incarnation], Awaitable[Request]],
    ) -> None:
        self._statements, self._rejections, self._ask = statements, rejections, ask
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[str, asyncio.Lock] = {}

    async def accepts(self, remote: str, packed: object, stream: Stream) -> bool:
        """Return whether the process that opened `stream` is accepted as peer `remote`. If not, send it the reason.

        `packed`: the incarnation that the process sent. A process that sent no incarnation (None) is accepted. Raises
        Unreadable if the incarnation is malformed, or not signed by the peer.
        """
        if packed is None:
            return True
        incarnation = Incarnation.read(packed)
        if incarnation is None or not self._statements.is_of(remote, incarnation):
            raise Unreadable("an incarnation that is malformed or not signed by its peer")
        async with self._asking.setdefault(remote, asyncio.Lock()):
            known = await self._look_up(remote, incarnation)
        return known.accepted.nonce == incarnation.nonce or await self._gives_way(remote, known, incarnation, stream)

    async def _look_up(self, remote: str, incarnation: Incarnation) -> _Known:
        """Accept or refuse a process of peer `remote`. Return the known processes of that peer."""
        known = self._known.setdefault(remote, _Known(incarnation))
        self._known.move_to_end(remote)
        while len(self._known) > MAX_KNOWN:
            self._asking.pop(self._known.popitem(last=False)[0], None)
        if known.accepted.nonce != incarnation.nonce:
            restarted = incarnation.count > known.accepted.count and incarnation.nonce not in known.refused
            objection = await self._objection_of(remote, known.accepted, incarnation) if restarted else b""
            if restarted and not objection:
                known.accepted = incarnation
            else:
                known.refuse(incarnation, objection)
        return known

    async def _objection_of(self, remote: str, elder: Incarnation, other: Incarnation) -> bytes:
        """Ask the elder process for its objection to another process. Return b"" if no valid objection arrives."""
        try:
            answer = await self._ask(remote, other)
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.info("%s counts as restarted, because its previous process does not answer: %s", remote, error)
            return b""
        objection = answer.get("objection")
        if not isinstance(objection, bytes) or not self._statements.objects(remote, elder, other, objection):
            return b""
        return objection

    async def _gives_way(self, remote: str, known: _Known, incarnation: Incarnation, stream: Stream) -> bool:
        """Notify the process that opened `stream` that another process with its key is accepted.

        If the notified process answers with a valid objection, accept it instead. Return whether it is now accepted.
        """
        self._rejections.note("outsiders", remote, "another machine also uses this identity")
        younger = known.accepted
        await stream.send_object({"known": younger.packed, "objection": known.refused.get(incarnation.nonce, b"")})
        try:
            objection = (await stream.receive_object(patience_s=VIEW_S)).get("objection")
        except BrokenStream:
            return False
        if not isinstance(objection, bytes) or not self._statements.objects(remote, incarnation, younger, objection):
            return False
        known.accepted = incarnation
        known.refused.pop(incarnation.nonce, None)
        known.refuse(younger, objection)
        return True
