"""RPC that returns the hash and size of a peer's payload for a round, once the peer has one.

    {number} ->   <- {payload: [sha256, bytes, state ...]}, or {} if the owner is past that round without one

Pull-based: there are no announcements that could be lost. Peers ask the owner, and ask again if the stream breaks. The
content itself is downloaded by its hash (payload_downloads.py) and holds its owner's signature (signed_payload.py).
"""

from __future__ import annotations

from collections.abc import Callable

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.hard_state import ROUNDS_KEPT
from outerloop.swarm.membership.mailbox import Mailbox
from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.rpc import RpcService
from outerloop.swarm.p2p.transport import Request, Transport
from outerloop.swarm.timeouts import POLL_S, limit
from outerloop.swarm.validation import MalformedMessage, id_of


class PayloadRpc(RpcService):
    """Client and server of the payload RPC. The server answers from `own`: round -> this peer's payload."""

    service = "payload"

    def __init__(self, transport: Transport, *, run: str, allowed: Callable[[str], bool]) -> None:
        super().__init__(transport, run=run, allowed=allowed)
        self.own: Mailbox[Participant] = Mailbox(keep=ROUNDS_KEPT)

    async def ask(self, peer: str, number: int, *, reached: Callable[[], None]) -> Participant | None:
        """Return a peer's payload for a round, or None if the peer is past the round without one.

        Calls `reached` as soon as the stream is open. Raises BrokenStream, Unreachable, TimeoutError.
        """
        async with self._stream_to(id_of(peer)) as stream:
            reached()
            await stream.send_object({"number": number})
            answer = await stream.receive_object(patience_s=POLL_S)
        try:
            return Participant.from_list([peer, *answer["payload"]]) if answer else None
        except (MalformedMessage, KeyError, TypeError) as error:
            self._transport.trust.refusals.note("payloads", peer, f"an answer without a payload: {error}")
            raise Unreadable(f"an answer without a payload: {error}") from error

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        number = request.get("number")
        if not isinstance(number, int):
            raise Unreadable("a request without the number of a round")
        async with limit(POLL_S):
            payload = await self.own.read(number)
        await stream.send_object({} if payload is None else {"payload": payload.to_list()[1:]})
        await stream.ended()
