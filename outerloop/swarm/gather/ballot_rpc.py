"""RPC that delivers ballots, i.e. consensus messages, each at most once and on its own stream.

{incarnation}, then one message of messages.py ->   <- the end of the stream, or an answer defined in incarnations.py

Some ballots make the consensus send a ballot back, e.g. the proof of the current view. A member could provoke these
without end and not read them. So this peer sends at most MAX_SENDING ballots to a peer at a time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping

import msgpack

from outerloop.swarm.consensus.messages import MAX_MESSAGE_BYTES, Message, from_map, to_map
from outerloop.swarm.membership.incarnations import Incarnations
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable
from outerloop.swarm.timeouts import SEND_S, limit
from outerloop.swarm.validation import MalformedMessage, id_of

logger = logging.getLogger(__name__)
MAX_SENDING = 32
"""Maximum number of ballots that are being sent to one peer at a time. A ballot beyond this limit is not sent. The
protocol tolerates lost ballots: peers send new ones in the next view, and fetch commits that they missed. To an honest
peer, about 16 are being sent at a time (p2p/stream_gate.py)."""


class BallotRpc(RpcService):
    """Sends ballots, and passes each received ballot to `receive` as (sender name, message, size in bytes)."""

    service = "ballot"

    def __init__(
        self, transport: Transport, *, run: str, names: Callable[[], Mapping[str, str]],
        receive: Callable[[str, Message, int], None], incarnations: Incarnations | None = None,
    ) -> None:  # fmt: skip
        super().__init__(transport, run=run, allowed=lambda peer: peer in names())
        self._names = names
        self._receive = receive
        self._incarnations = incarnations
        self._sending = BackgroundTasks()
        self._sending_to: Counter[str] = Counter()  # id of a peer -> number of ballots that are being sent to it

    def send(self, to: str, message: Message) -> None:
        """Send a ballot in the background, unless too many are being sent to this peer. Failures are only logged."""
        peer = id_of(to)
        if self._sending_to[peer] >= MAX_SENDING:
            logger.debug("%s to %s was dropped: %d ballots are being sent", type(message).__name__, to, MAX_SENDING)
            return
        self._sending_to[peer] += 1
        self._sending.start(self._send(to, message)).add_done_callback(lambda task: self._ended(peer))

    def _ended(self, peer: str) -> None:
        self._sending_to -= Counter([peer])  # removes peers with a count of 0

    async def sent(self) -> None:
        """Wait until the ballots that are being sent have arrived or are lost."""
        await self._sending.finished()

    async def _send(self, to: str, message: Message) -> None:
        own = self._incarnations
        if own is not None and own.stopped:
            return
        try:
            async with limit(SEND_S), self._stream_to(id_of(to)) as stream:
                await stream.send_object({} if own is None else {"incarnation": own.own})
                await send_message(stream, message)
                await (stream.ended() if own is None else own.heed(stream))
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s to %s was lost: %s", type(message).__name__, to, error)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        message, incarnations = await receive_message(stream), self._incarnations
        if incarnations is None or await incarnations.others.accepts(remote, request.get("incarnation"), stream):
            self._receive(self._names()[remote], message, stream.moved_bytes)


async def send_message(stream: Stream, message: Message) -> None:
    await stream.send(msgpack.packb(to_map(message)))


async def receive_message(stream: Stream) -> Message:
    """Receive one message. Raises Unreadable if it is malformed, and BrokenStream if the stream fails."""
    try:
        return from_map(msgpack.unpackb(await stream.receive(at_most=MAX_MESSAGE_BYTES)))
    except MalformedMessage as error:
        raise Unreadable(str(error)) from error
    except ValueError as error:  # all errors that unpackb raises are ValueErrors
        raise Unreadable(f"unreadable ballot: {error}") from error
