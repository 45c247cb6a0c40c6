"""Admission control for incoming streams, with limits for each peer and for all non-members together.

    the peer is not on the allow-list, or may not use the protocol   send a refusal; read nothing
    the peer is not on the allow-list, and asks too often            hold the stream: keep it open, unread, unanswered
    too many open streams, or too many requests                      close the stream; read nothing
    the first frame is late or too long, or the peer announces too
    many bytes                                                       close the stream

In a run with an allow-list, admission control treats every listed peer as a member; other peers are refused at the
first check. In an open run, anyone can create identities, so the total usage of all non-members is bounded as well.
Non-members, including newcomers, can exhaust each other's share, but not the members' share.

Public requests (transport.anybody) are short and cheap; they are limited in number and in bytes. A newcomer's other
requests (for payloads and states) are limited only in number, because a state is as large as the model. The operator
sets the upload rate of states (uploads.py).
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.access.rate_limits import EVERYBODY, Budget, Rate, loop_s
from outerloop.swarm.p2p.framing import CONTROL_BYTES, BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Handler, Request, anybody
from outerloop.swarm.resource_exhaustion import EXHAUSTION
from outerloop.swarm.timeouts import FIRST_FRAME_S, HOLD_S, limit

logger = logging.getLogger(__name__)
MEMBER_STREAMS = 64
"""Maximum number of open streams per member. An honest member has at most 34 streams open to one peer: one payload
transfer, 8 state transfers, two polls, three streams for commits, one each for a meeting (rendezvous.py), a gossip
pair, the final gather and the formation of the swarm, and about 16 consensus messages in flight. The limit is about
twice that number."""
NEWCOMER_STREAMS = 24
"""Maximum number of open streams per newcomer, a peer that is about to become a member: one payload transfer, 8 state
transfers, and 15 other streams."""
STRANGER_STREAMS = 8
"""Maximum number of open streams for public requests per non-member. They also count towards NEWCOMER_STREAMS."""
OUTSIDE_STREAMS = 128
"""Maximum total number of open streams of all non-members. With the members' streams, this stays well below the usual
limit of 1,024 open files."""
TURNED_AWAY_AT_ONCE = 16
"""Maximum number of refusals being sent at once. The streams of further refused peers are closed without a message."""
TURNED_AWAY, TURNED_AWAY_IN_ALL = Rate(burst=16, per_s=1), Rate(burst=256, per_s=16)
"""Rate limits for refusals sent with a message: per unlisted peer, and in total for all unlisted peers. Each refusal
costs about 1 ms. Streams beyond these rates are held for HOLD_S.
"""
HELD_AT_ONCE = 416
"""Maximum number of streams held at once; further ones are closed. Each uses two open files in this process, two in
p2pd, and 0.18 MB of p2pd's memory, 75 MB in total."""
REQUEST_BYTES = 1024
"""Maximum size of a public request from a non-member: a map with a name, a key's hash or a number of bytes."""
RECEIVING_BYTES = 8 << 20
"""Maximum number of announced bytes in flight per peer: enough for four of the longest consensus messages."""
REQUESTS, REQUESTS_OF_STRANGERS = Rate(burst=32, per_s=4), Rate(burst=256, per_s=64)
"""Rate limits for public requests: per non-member, and in total for all non-members. A peer that joins a forming swarm
sends many requests in its first seconds, then one per second. Several peers may join at the same time."""
BYTES, BYTES_OF_STRANGERS = Rate(burst=4 << 20, per_s=256 << 10), Rate(burst=16 << 20, per_s=1 << 20)
"""Rate limits for the bytes sent and received in public requests: per non-member, and in total for all non-members. A
probe takes 2 MiB; several machines may probe or form the swarm at the same time."""
REQUESTS_OF_NEWCOMER, REQUESTS_OF_NEWCOMERS = Rate(burst=512, per_s=128), Rate(burst=2048, per_s=512)
"""Rate limits for all other requests (ballots, one stream per payload, one per 8 MiB of a state): per newcomer, and in
total for all newcomers. With rounds of one second, a newcomer sends each peer about 10 requests per second, and more
while it catches up."""


class StreamGate:
    """Decides which incoming streams are answered.

    Args:
        member: returns whether a peer that `trust` admits is a member.

    `open_streams` contains the number of streams being answered, by (peer id, whether the protocol is public), and
    `receiving` the number of bytes announced on them, by peer id.
    """

    def __init__(self, trust: AccessControl, *, member: Callable[[str], bool]) -> None:
        self._trust = trust
        self._member = member
        self.open_streams: Counter[tuple[str, bool]] = Counter()  # key: (peer id, whether the protocol is public)
        self._open_outside = 0
        self._turning_away = 0
        self._held = 0
        self.receiving: Counter[str] = Counter()  # bytes announced on streams that are open
        self._requests = Budget(REQUESTS, REQUESTS_OF_STRANGERS, is_member=member, now_s=loop_s)
        self._bytes = Budget(BYTES, BYTES_OF_STRANGERS, is_member=member, now_s=loop_s)
        self._turned_away = Budget(TURNED_AWAY, TURNED_AWAY_IN_ALL, is_member=trust.allow.__contains__, now_s=loop_s)
        self._of_newcomers = Budget(REQUESTS_OF_NEWCOMER, REQUESTS_OF_NEWCOMERS, is_member=member, now_s=loop_s)

    async def answer(
        self, remote: str, protocol: str, stream: Stream, *, allowed: Callable[[str], bool], handler: Handler
    ) -> None:
        """Pass a peer's stream to `handler` if `trust` and `allowed` admit the peer. The caller closes the stream.

        A stream that fails is aborted at once, and data that the remote peer has not read yet is dropped.
        """
        try:
            if not self._trust.admits(remote, protocol, allowed):
                await self._turn_away(remote, stream)
            elif excess := self._excess(remote, public=allowed is anybody):
                self._trust.rejections.note("requests", *excess)
                stream.abort()
            else:
                await self._hand_on(remote, stream, handler, public=allowed is anybody)
        except (BrokenStream, TimeoutError) as error:
            stream.abort()
            if isinstance(error, Unreadable):
                self._trust.garbled(remote, protocol, error)
            else:
                logger.debug("the stream of %s on %s failed: %s", remote, protocol, error)
        except OSError as error:
            stream.abort()
            if not EXHAUSTION.note(error):  # when resources run out, the remote peer retries
                raise

    async def _hand_on(self, remote: str, stream: Stream, handler: Handler, *, public: bool) -> None:
        outside = not self._member(remote)
        stream.reserve = partial(self._reserve, remote)
        with self._counted(remote, public=public, outside=outside):
            try:
                await handler(remote, await _first_frame(stream, public=public, outside=outside), stream)
            finally:
                if public and outside:
                    self._bytes.charge(remote, stream.moved_bytes)

    def _excess(self, remote: str, *, public: bool) -> tuple[str, str] | None:
        """Return the peer (or EVERYBODY) that exceeds a limit and a description of the limit, or None.

        If the peer is a non-member within the stream limits, spend one request from its budget.
        """
        outside = not self._member(remote)
        most = NEWCOMER_STREAMS if outside else MEMBER_STREAMS
        if self.open_streams[remote, True] + self.open_streams[remote, False] >= most:
            return remote, f"has {most} streams open; further ones are closed"
        if outside and public and self.open_streams[remote, True] >= STRANGER_STREAMS:
            return remote, f"has {STRANGER_STREAMS} streams open for public requests; further ones are closed"
        if outside and self._open_outside >= OUTSIDE_STREAMS:
            return EVERYBODY, f"have {OUTSIDE_STREAMS} streams open; further ones are closed"
        if outside and (who := self._overspent(remote, public=public)):
            return who, "sent too many requests or requested too many bytes; further requests are refused for a while"
        return None

    def _overspent(self, remote: str, *, public: bool) -> str:
        """Spend one request and return "". If a budget is exhausted, spend nothing and return its owner."""
        if not public:
            return self._of_newcomers.spend(remote)
        return self._bytes.lacking(remote) or self._requests.spend(remote)

    @contextmanager
    def _counted(self, remote: str, *, public: bool, outside: bool) -> Iterator[None]:
        self.open_streams[remote, public] += 1
        self._open_outside += outside
        try:
            yield
        finally:
            self._open_outside -= outside
            self.open_streams[remote, public] -= 1
            if not self.open_streams[remote, public]:
                del self.open_streams[remote, public]

    @contextmanager
    def _reserve(self, remote: str, size: int) -> Iterator[None]:
        """Reserve `size` bytes for an incoming message for the duration of a `with` block.

        Raises Unreadable if the peer's streams together announce more than RECEIVING_BYTES.
        """
        if self.receiving[remote] + size > RECEIVING_BYTES:
            raise Unreadable(f"announces more than {RECEIVING_BYTES} bytes at a time on its streams")
        self.receiving[remote] += size
        try:
            yield
        finally:
            self.receiving[remote] -= size
            if not self.receiving[remote]:
                del self.receiving[remote]

    async def _turn_away(self, remote: str, stream: Stream) -> None:
        """Send a refusal, or hold the stream if an unlisted peer asks too often.

        If TURNED_AWAY_AT_ONCE refusals are already being sent, abort the stream instead.
        """
        if remote not in self._trust.allow and self._turned_away.spend(remote):
            await self._hold(stream)
        elif self._turning_away >= TURNED_AWAY_AT_ONCE:
            stream.abort()
        else:
            self._turning_away += 1
            try:
                await stream.turn_away(self._trust.allow.exclusion(remote))
            finally:
                self._turning_away -= 1

    async def _hold(self, stream: Stream) -> None:
        """Keep a stream open without reading it (a tarpit), then abort it.

        If HELD_AT_ONCE streams are already held, abort this one immediately. A sender that asks too often reopens a
        closed stream at once, which costs this machine 0.5 ms. An unread open stream costs no CPU time, and flow
        control stops its sender. The streams end at random times, so that they are not all reopened at the same time.
        """
        if self._held < HELD_AT_ONCE:
            self._held += 1
            try:
                await stream.hold(HOLD_S * random.uniform(0.5, 1.5))
            finally:
                self._held -= 1
        stream.abort()


async def _first_frame(stream: Stream, *, public: bool, outside: bool) -> Request:
    async with limit(FIRST_FRAME_S if outside else None):
        return await stream.receive_object(at_most=REQUEST_BYTES if public and outside else CONTROL_BYTES)
