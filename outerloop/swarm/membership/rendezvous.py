"""Hold meetings at the start and at the end of a run. A meeting is an all-gather of bytes among all live peers.

    {number} ->   <- {} | the bytes, as soon as the peer has reached that meeting; {none} if it has passed that meeting

A meeting only collects the bytes that the peers show; it decides nothing. It does not wait for peers that are gone. A
live peer that does not arrive within a time limit, MEET_S by default, is left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from outerloop.swarm.membership.mailbox import Mailbox
from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.transport import PeerUnreachable, Request, RpcService, Transport, persist
from outerloop.swarm.timeouts import LINGER_S, MEET_S, limit
from outerloop.swarm.validation import id_of

logger = logging.getLogger(__name__)
KEPT = 2  # number of meetings whose bytes a late peer can still request


class Rendezvous(RpcService):
    """One peer's part in the meetings: shows its bytes to the others and reads theirs. `own` is this peer's name."""

    service = "meeting"

    def __init__(
        self, transport: Transport, *, run: str, own: str, allowed: Callable[[str], bool], max_bytes: int
    ) -> None:
        super().__init__(transport, run=run, allowed=allowed)
        self._own = own
        self._max_bytes = max_bytes
        self._shown: Mailbox[bytes] = Mailbox(keep=KEPT)
        self._last = -1  # number of the latest meeting
        self._not_seen: set[str] = set()  # ids of the peers that have not read this peer's bytes of that meeting

    async def meet(
        self, number: int, content: bytes, peers: Iterable[str], *, patience_s: float = MEET_S
    ) -> dict[str, bytes]:
        """Show `content` at meeting `number`. Return the bytes that each peer showed, keyed by name.

        The result includes this peer's own bytes. Peers that are gone or too late are left out.
        `patience_s`: how long a live peer may take to arrive.
        """
        others = [peer for peer in peers if peer != self._own]
        self._last, self._not_seen = number, set(map(id_of, others))
        self._shown.post(number, content)
        seen = await asyncio.gather(*(self._look_at(peer, number, patience_s) for peer in others))
        met = {peer: shown for peer, shown in zip(others, seen, strict=True) if shown is not None}
        return dict(sorted((met | {self._own: content}).items()))

    async def linger(self) -> None:
        """Wait up to LINGER_S until all peers of the latest meeting have read this peer's bytes."""
        try:
            async with limit(LINGER_S):
                while self._not_seen:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            logger.warning("this peer left before others had read its bytes: %s", ", ".join(sorted(self._not_seen)))

    async def _look_at(self, peer: str, number: int, patience_s: float) -> bytes | None:
        try:
            async with limit(patience_s):
                return await persist(lambda: self._ask(peer, number), peer=peer)
        except (PeerUnreachable, TimeoutError) as error:
            logger.warning("%s is left out of a meeting of all peers: %s", peer, error)
            self._not_seen.discard(id_of(peer))
            return None

    async def _ask(self, peer: str, number: int) -> bytes:
        async with self._stream_to(id_of(peer)) as stream:
            await stream.send_object({"number": number})
            if "none" in await stream.receive_object(patience_s=MEET_S):
                raise PeerUnreachable(f"{peer} is past meeting {number}")
            return await stream.receive(at_most=self._max_bytes)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        number = request.get("number")
        if not isinstance(number, int):
            raise Unreadable("a request without a meeting number")
        async with limit(MEET_S):
            content = await self._shown.read(number)
        await stream.send_object({} if content is not None else {"none": True})
        if content is not None:
            await stream.send(content)
        await stream.ended()
        if number >= self._last:
            self._not_seen.discard(remote)
