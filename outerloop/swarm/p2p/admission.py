"""Which streams of other peers are answered, and what one peer, or all that are not members, may cost this one.

    not on the allow-list, or not entitled to this protocol: told so, TURNED_AWAY_AT_ONCE at a time; nothing is read
    not on the allow-list, and asks again and again          its connection is closed, with all streams on it
    too many streams at a time, or asked too often           closed; nothing is read
    a first frame that is late or long, too much at a time   closed

In a run with an allow-list all that are on it are members here: the others never come so far. In an open run anybody
can make identities, so what all who are not members may take together is bounded as well. They can exhaust each other's
share, newcomers' included, but not the members'.

What anybody may ask is short and cheap, and is bounded by requests and bytes. What only a newcomer may ask, payloads
and states, is bounded by requests: a state is as large as the model. How fast it leaves, the operator says
(rate_limiter.py).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.access.rate_limits import EVERYBODY, Budget, Rate, loop_s
from outerloop.swarm.p2p.framing import CONTROL_BYTES, BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Handler, Request, anybody
from outerloop.swarm.resource_exhaustion import EXHAUSTION
from outerloop.swarm.timeouts import FIRST_FRAME_S, limit

logger = logging.getLogger(__name__)
MEMBER_STREAMS = 64
"""Of one member. At one peer it has open at most one transfer of payloads and 8 of state, two polls, three for commits,
one each to meet, pair, assemble and form, and about 16 messages of the agreement on their way: 34, and as many more."""
NEWCOMER_STREAMS = 24
"""Of one that is to become a member: one transfer of payloads, 8 of state, 15 for the rest."""
STRANGER_STREAMS = 8
"""Of one peer that is not a member, for what anybody may ask; a newcomer's count among its NEWCOMER_STREAMS."""
OUTSIDE_STREAMS = 128
"""Of all that are not members: with those of the members well below 1,024 open files, the usual limit."""
TURNED_AWAY_AT_ONCE = 16
"""Peers that are told that they are not answered, at a time; the others' streams are closed without a word."""
TURNED_AWAY, TURNED_AWAY_IN_ALL = Rate(burst=16, per_s=1), Rate(burst=256, per_s=16)
"""Streams of one peer that is not on the allow-list, and of all of them, that are refused one by one. Each costs about
1 ms, so past that the connection is closed: a new one costs its owner as much as this peer."""
REQUEST_BYTES = 1024
"""Of what anybody may ask, from one that is not a member: a map with a name, the hash of a key or a number of bytes."""
RECEIVING_BYTES = 8 << 20
"""What the streams of one peer may announce together: four of the longest messages of the agreement."""
REQUESTS, REQUESTS_OF_STRANGERS = Rate(burst=32, per_s=4), Rate(burst=256, per_s=64)
"""For what anybody may ask. A peer that forms asks often in its first seconds, then once a second; several do at a
time."""
BYTES, BYTES_OF_STRANGERS = Rate(burst=4 << 20, per_s=256 << 10), Rate(burst=16 << 20, per_s=1 << 20)
"""Both ways, for the same. A probe takes 2 MiB; several machines probe or form at a time."""
REQUESTS_OF_NEWCOMER, REQUESTS_OF_NEWCOMERS = Rate(burst=512, per_s=128), Rate(burst=2048, per_s=512)
"""For all else: ballots, and a stream for each payload and each 8 MiB of a state. A newcomer needs about 10 a second of
each peer where a round takes a second, and more while it catches up."""


class Admission:
    """Answers streams of others.

    Args:
        member: whether a peer id is a member's, of those whom `trust` admits.
        hang_up: close the connection to a peer.
    """

    def __init__(
        self, trust: AccessControl, *, member: Callable[[str], bool], hang_up: Callable[[str], Awaitable[None]]
    ) -> None:
        self._trust = trust
        self._member = member
        self._hang_up = hang_up
        self._hanging_up: set[str] = set()
        self._open: Counter[tuple[str, bool]] = Counter()  # by peer, and whether it is what anybody may ask
        self._open_outside = 0
        self._turning_away = 0
        self._receiving: Counter[str] = Counter()  # bytes announced on streams that are open
        self._requests = Budget(REQUESTS, REQUESTS_OF_STRANGERS, is_member=member, now_s=loop_s)
        self._bytes = Budget(BYTES, BYTES_OF_STRANGERS, is_member=member, now_s=loop_s)
        self._turned_away = Budget(TURNED_AWAY, TURNED_AWAY_IN_ALL, is_member=trust.allow.__contains__, now_s=loop_s)
        self._of_newcomers = Budget(REQUESTS_OF_NEWCOMER, REQUESTS_OF_NEWCOMERS, is_member=member, now_s=loop_s)

    async def answer(
        self, remote: str, protocol: str, stream: Stream, *, allowed: Callable[[str], bool], handler: Handler
    ) -> None:
        """Let `handler` answer one stream of a peer, if that is admitted and `allowed`; the caller closes it.

        A stream that ends otherwise than it should is dropped at once, with all that the other side did not take.
        """
        try:
            if not self._trust.admits(remote, protocol, allowed):
                await self._turn_away(remote, stream)
            elif excess := self._excess(remote, public=allowed is anybody):
                self._trust.refusals.note("requests", *excess)
                stream.abort()
            else:
                await self._hand_on(remote, stream, handler, public=allowed is anybody)
        except (BrokenStream, TimeoutError) as error:
            stream.abort()
            if isinstance(error, Unreadable):
                self._trust.garbled(remote, protocol, error)
            else:
                logger.debug("%s left %s: %s", remote, protocol, error)
        except OSError as error:
            stream.abort()
            if not EXHAUSTION.note(error):  # else the other side asks again
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
        """Return whose stream is one too many and why; None when it is not. A request is spent then."""
        outside = not self._member(remote)
        most = NEWCOMER_STREAMS if outside else MEMBER_STREAMS
        if self._open[remote, True] + self._open[remote, False] >= most:
            return remote, f"has {most} streams open, more are closed"
        if outside and public and self._open[remote, True] >= STRANGER_STREAMS:
            return remote, f"has {STRANGER_STREAMS} streams open for what anybody may ask, more are closed"
        if outside and self._open_outside >= OUTSIDE_STREAMS:
            return EVERYBODY, f"have {OUTSIDE_STREAMS} streams open, more are closed"
        if outside and (who := self._overspent(remote, public=public)):
            return who, "asked too often or for too much; not answered for a while"
        return None

    def _overspent(self, remote: str, *, public: bool) -> str:
        """Return whose budget is spent; empty when none is. A request is spent then."""
        if not public:
            return self._of_newcomers.spend(remote)
        return self._bytes.lacking(remote) or self._requests.spend(remote)

    @contextmanager
    def _counted(self, remote: str, *, public: bool, outside: bool) -> Iterator[None]:
        self._open[remote, public] += 1
        self._open_outside += outside
        try:
            yield
        finally:
            self._open_outside -= outside
            self._open[remote, public] -= 1
            if not self._open[remote, public]:
                del self._open[remote, public]

    @contextmanager
    def _reserve(self, remote: str, size: int) -> Iterator[None]:
        """Have room for a message of a peer while it arrives. Raises Unreadable when it announces too much."""
        if self._receiving[remote] + size > RECEIVING_BYTES:
            raise Unreadable(f"announces more than {RECEIVING_BYTES} bytes at a time on its streams")
        self._receiving[remote] += size
        try:
            yield
        finally:
            self._receiving[remote] -= size
            if not self._receiving[remote]:
                del self._receiving[remote]

    async def _turn_away(self, remote: str, stream: Stream) -> None:
        """Tell a peer that it is not answered, if there are not too many of them; hang up on who asks too often."""
        if remote not in self._trust.allow and self._turned_away.spend(remote):
            stream.abort()
            await self._hang_up_once(remote)
        elif self._turning_away >= TURNED_AWAY_AT_ONCE:
            stream.abort()
        else:
            self._turning_away += 1
            try:
                await stream.turn_away()
            finally:
                self._turning_away -= 1

    async def _hang_up_once(self, remote: str) -> None:
        """Close the connection to a peer, unless that is under way."""
        if remote in self._hanging_up:
            return
        self._hanging_up.add(remote)
        try:
            await self._hang_up(remote)
        finally:
            self._hanging_up.discard(remote)


async def _first_frame(stream: Stream, *, public: bool, outside: bool) -> Request:
    async with limit(FIRST_FRAME_S if outside else None):
        return await stream.receive_object(at_most=REQUEST_BYTES if public and outside else CONTROL_BYTES)
