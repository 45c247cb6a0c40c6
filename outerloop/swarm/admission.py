"""Which streams of other peers are answered, and what one peer, or all that are not members, may cost this one.

    not on the allow-list, or no part in what is asked for    told so, TURNED_AWAY_AT_ONCE at a time; nothing is read
    too many streams at a time, or asked too often            closed; nothing is read
    a first frame that is late or long, too much at a time    closed

In a run with an allow-list all that are on it are members here: the others never come so far. In an open run anybody
can make identities, so what all who are not members may take together is bounded as well. They can crowd each other
out, newcomers among them, and nobody else.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from outerloop.swarm.allowance import Allowance
from outerloop.swarm.exhaustion import EXHAUSTION
from outerloop.swarm.framing import CONTROL_BYTES, BrokenStream, Stream, Unreadable
from outerloop.swarm.timeouts import FIRST_FRAME_S, limit
from outerloop.swarm.transport import Handler, Request, anybody
from outerloop.swarm.trust import Trust

logger = logging.getLogger(__name__)
MEMBER_STREAMS = 64
"""Of one member. At one peer it has open at most one transfer of payloads and 8 of state, two polls, three for commits,
one each to meet, pair, assemble and form, and about 16 messages of the agreement on their way: 34, and as many more."""
NEWCOMER_STREAMS = 24
"""Of one that is to become a member: one transfer of payloads, 8 of state, 15 for the rest."""
STRANGER_STREAMS = 8
"""Of one peer that is not a member, for what anybody may ask."""
OUTSIDE_STREAMS = 128
"""Of all that are not members: with those of the members well below 1,024 open files, the usual limit."""
TURNED_AWAY_AT_ONCE = 16
"""Peers that are told that they are not answered, at a time; the others' streams are closed without a word."""
REQUEST_BYTES = 1024
"""Of what anybody may ask: a map with a name, the hash of a key or a number of bytes."""
RECEIVING_BYTES = 8 << 20
"""What the streams of one peer may announce together: four of the longest messages of the agreement."""
REMEMBERED = 1024
"""Peers that are not members whose spending is remembered."""


class Budget:
    """Requests and bytes of answers, of one peer or of all."""

    def __init__(self, *, requests: int, requests_per_s: float, size: int, bytes_per_s: float) -> None:
        self.requests = Allowance(requests, per_s=requests_per_s)
        self.bytes = Allowance(size, per_s=bytes_per_s)

    @property
    def spent(self) -> bool:
        return self.requests.left() < 1 or self.bytes.left() <= 0


def budget_of_one() -> Budget:
    """A peer that forms asks often in its first seconds, then once a second; a probe takes 2 MiB."""
    return Budget(requests=32, requests_per_s=4.0, size=4 << 20, bytes_per_s=256 * 1024)


def budget_of_all() -> Budget:
    """Several machines that form or probe at a time."""
    return Budget(requests=256, requests_per_s=64.0, size=16 << 20, bytes_per_s=1 << 20)


class Admission:
    """Answers streams of others. `member`: whether a peer id is a member's, of those whom `trust` admits."""

    def __init__(self, trust: Trust, *, member: Callable[[str], bool]) -> None:
        self._trust = trust
        self._member = member
        self._open: Counter[tuple[str, bool]] = Counter()  # by peer, and whether it is what anybody may ask
        self._open_outside = 0
        self._turning_away = 0
        self._receiving: Counter[str] = Counter()  # bytes announced on streams that are open
        self._budgets: OrderedDict[str, Budget] = OrderedDict()
        self._budget_of_all = budget_of_all()

    async def answer(
        self, remote: str, protocol: str, stream: Stream, *, allowed: Callable[[str], bool], handler: Handler
    ) -> None:
        """Let `handler` answer one stream of a peer, if that is admitted and `allowed`; the caller closes it.

        A stream that ends otherwise than it should is dropped at once, with all that the other side did not take.
        """
        try:
            if not self._trust.admits(remote, protocol, allowed):
                await self._turn_away(stream)
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
                    for budget in (self._budget(remote), self._budget_of_all):
                        budget.bytes.charge(stream.moved_bytes)

    def _excess(self, remote: str, *, public: bool) -> tuple[str, str] | None:
        """Return whose stream is one too many and why; None when it is not. A request is spent then."""
        outside = not self._member(remote)
        most = MEMBER_STREAMS if not outside else STRANGER_STREAMS if public else NEWCOMER_STREAMS
        if self._open[remote, public] >= most:
            return remote, f"has {most} streams open, more are closed"
        if outside and self._open_outside >= OUTSIDE_STREAMS:
            return "all that are not members", f"have {OUTSIDE_STREAMS} streams open, more are closed"
        return self._overspent(remote) if outside and public else None

    def _overspent(self, remote: str) -> tuple[str, str] | None:
        if self._budget(remote).spent:
            return remote, "asks too often or for too much, and is not answered for a while"
        if self._budget_of_all.spent:
            return "all that are not members", "ask too often or for too much, and are not answered for a while"
        for budget in (self._budget(remote), self._budget_of_all):
            budget.requests.charge(1)
        return None

    def _budget(self, remote: str) -> Budget:
        budget = self._budgets.pop(remote, None)
        budget = self._budgets[remote] = budget or budget_of_one()
        while len(self._budgets) > REMEMBERED:
            self._budgets.popitem(last=False)
        return budget

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

    async def _turn_away(self, stream: Stream) -> None:
        """Tell a peer that it is not answered, if there are not too many of them."""
        if self._turning_away >= TURNED_AWAY_AT_ONCE:
            stream.abort()
            return
        self._turning_away += 1
        try:
            await stream.turn_away()
        finally:
            self._turning_away -= 1


async def _first_frame(stream: Stream, *, public: bool, outside: bool) -> Request:
    async with limit(FIRST_FRAME_S if outside else None):
        return await stream.receive_object(at_most=REQUEST_BYTES if public else CONTROL_BYTES)
