"""Which payload a peer has for a round: its owner is asked, and answers as soon as it has one.

    {number} ->   <- {payload: [sha256, bytes, state ...]}, or {} when the owner is past that round without one

Nobody announces, so nothing is lost that would have to be said again: whoever wants to know asks, and asks again when
the stream broke. The content itself is pulled by its hash (payload_downloads.py), and holds its owner's signature
(signed_payload.py).
"""

from __future__ import annotations

from collections.abc import Callable

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.hard_state import ROUNDS_KEPT
from outerloop.swarm.membership.mailbox import Mailbox
from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, Transport
from outerloop.swarm.timeouts import POLL_S, limit
from outerloop.swarm.validation import MalformedMessage, id_of


class PayloadRpc:
    """What this peer has for each round, for others to ask; `own` is the board that says it."""

    def __init__(self, transport: Transport, *, run: str, allowed: Callable[[str], bool]) -> None:
        self._transport = transport
        self._protocol = f"outerloop/1/{run}/payload"
        self._allowed = allowed
        self.own: Mailbox[Participant] = Mailbox(keep=ROUNDS_KEPT)

    async def serve(self) -> None:
        await self._transport.serve(self._protocol, allowed=self._allowed, handler=self._tell)

    async def ask(self, peer: str, number: int, *, reached: Callable[[], None]) -> Participant | None:
        """What a peer has for a round; None: it has gone on without. Tells as soon as it is in reach.

        Raises BrokenStream, Unreachable, TimeoutError.
        """
        async with self._transport.open_stream(id_of(peer), self._protocol) as stream:
            reached()
            await stream.send_object({"number": number})
            told = await stream.receive_object(patience_s=POLL_S)
        try:
            return Participant.from_list([peer, *told["payload"]]) if told else None
        except (MalformedMessage, KeyError, TypeError) as error:
            self._transport.trust.refusals.note("payloads", peer, f"an answer without a payload: {error}")
            raise Unreadable(f"an answer without a payload: {error}") from error

    async def _tell(self, remote: str, request: Request, stream: Stream) -> None:
        number = request.get("number")
        if not isinstance(number, int):
            raise Unreadable("a request without the number of a round")
        async with limit(POLL_S):
            one = await self.own.read(number)
        await stream.send_object({} if one is None else {"payload": one.to_list()[1:]})
        await stream.ended()
