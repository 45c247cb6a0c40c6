"""The commits that a peer missed, from another one's log.

{after} ->   <- {commits: how many}, then each as a message of ballots.py
{after: nil} asks for all that the log holds; so does a number that the log does not reach back to
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outerloop.swarm.ballots import Decided
from outerloop.swarm.framing import Stream, Unreadable
from outerloop.swarm.memory import ROUNDS_KEPT
from outerloop.swarm.post import receive_message, send_message
from outerloop.swarm.roster import id_of
from outerloop.swarm.timeouts import HISTORY_S, limit
from outerloop.swarm.transport import Request, Transport

Since = Callable[[int | None], Sequence[Decided]]


class History:
    """Asks others, and answers with what `since` says of this peer's log."""

    def __init__(self, transport: Transport, *, run: str, allowed: Callable[[str], bool], since: Since) -> None:
        self._transport = transport
        self._protocol = f"outerloop/1/{run}/commits"
        self._allowed = allowed
        self._since = since

    async def serve(self) -> None:
        await self._transport.serve(self._protocol, allowed=self._allowed, handler=self._tell)

    async def ask(self, peer: str, after: int | None) -> list[Decided]:
        """Return the commits after this number, oldest first; all that the log holds for None.

        Where the log does not reach back that far, the first of them is a later one than the next. Raises BrokenStream,
        Unreachable, TimeoutError.
        """
        async with limit(HISTORY_S), self._transport.open_stream(id_of(peer), self._protocol) as stream:
            await stream.send_object({"after": after})
            count = (await stream.receive_object()).get("commits")
            if type(count) is not int or not 0 <= count <= ROUNDS_KEPT:
                raise Unreadable(f"a log of {count!r} commits")
            return [_decided(await receive_message(stream), after) for _ in range(count)]

    async def _tell(self, remote: str, request: Request, stream: Stream) -> None:
        after = request.get("after")
        if not isinstance(after, int | None):
            raise Unreadable("a request without a number")
        found = self._since(after)
        await stream.send_object({"commits": len(found)})
        for decided in found:
            await send_message(stream, decided)
        await stream.ended()


def _decided(message: object, after: int | None) -> Decided:
    if not isinstance(message, Decided):
        raise Unreadable("a log of something else than commits")
    if after is not None and message.commit.number <= after:
        raise Unreadable(f"commit {message.commit.number} where those after {after} were asked for")
    return message
