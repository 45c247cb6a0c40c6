"""The commits that a peer missed, from another one's log.

{after} ->   <- {commits: how many}, then each as a message of ballots.py;   {} when the log does not reach back
{after: nil} asks for all that the log holds
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from outerloop.swarm.ballots import Decided
from outerloop.swarm.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.memory import ROUNDS_KEPT
from outerloop.swarm.post import receive_message, send_message
from outerloop.swarm.roster import id_of
from outerloop.swarm.timeouts import HISTORY_S, limit
from outerloop.swarm.transport import Request, Transport, Unreachable

logger = logging.getLogger(__name__)
Since = Callable[[int | None], Sequence[Decided] | None]


class TooShort(Exception):
    """No log that can be had reaches back far enough."""


class History:
    """Asks others, and answers with what `since` says of this peer's log."""

    def __init__(self, transport: Transport, *, run: str, allowed: Callable[[str], bool], since: Since) -> None:
        self._transport = transport
        self._protocol = f"outerloop/1/{run}/commits"
        self._allowed = allowed
        self._since = since

    async def serve(self) -> None:
        await self._transport.serve(self._protocol, allowed=self._allowed, handler=self._tell)

    async def ask_any(self, peers: Iterable[str], after: int) -> list[tuple[str, Decided]]:
        """The commits after this number, with whom they are from: the first of these peers who has any.

        Raises TooShort when nobody has and somebody's log begins later.
        """
        too_short = False
        for peer in peers:
            try:
                found = await self.ask(peer, after)
            except (BrokenStream, Unreachable, TimeoutError) as error:
                logger.debug("%s does not tell the commits since %d: %s", peer, after, error)
                continue
            if found:
                return [(peer, decided) for decided in found]
            too_short |= found is None
        if too_short:
            raise TooShort
        return []

    async def ask(self, peer: str, after: int | None) -> list[Decided] | None:
        """The commits after this number, oldest first; None: all that its log holds.

        Raises BrokenStream, Unreachable, TimeoutError.
        """
        async with limit(HISTORY_S), self._transport.open_stream(id_of(peer), self._protocol) as stream:
            await stream.send_object({"after": after})
            count = (await stream.receive_object()).get("commits")
            if count is None:
                return None
            if not isinstance(count, int) or not 0 <= count <= ROUNDS_KEPT:
                raise Unreadable(f"a log of {count!r} commits")
            return [_decided(await receive_message(stream)) for _ in range(count)]

    async def _tell(self, remote: str, request: Request, stream: Stream) -> None:
        after = request.get("after")
        if not isinstance(after, int | None):
            raise Unreadable("a request without a number")
        found = self._since(after)
        await stream.send_object({} if found is None else {"commits": len(found)})
        for decided in found or ():
            await send_message(stream, decided)
        await stream.ended()


def _decided(message: object) -> Decided:
    if not isinstance(message, Decided):
        raise Unreadable("a log of something else than commits")
    return message
