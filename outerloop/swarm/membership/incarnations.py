"""Which process of a peer is taken for it, so that two machines with one key are noticed, and one is refused by all.

    outerloop/1/<run>/incarnation    {incarnation} ->                 <- {taken} | {known, objection}, as below
                                     {incarnation, other} ->          <- {objection}
    with each ballot                 {incarnation} | the ballot ->    <- nothing | {known, objection}    {objection} ->

A process is a count, raised in the key's own file before it says anything, and a nonce. The count tells a restart from
a copy:

    higher than the known one    a restart, or a copy that was started while the known one lives. The known one is asked
                                 on a stream that is opened now: if it answers, it lives, and objects. If another one
                                 answers, or nobody, it has gone: a process that was killed is back at once
    the same, another nonce      one file was started twice: it was copied. Who came second is refused
    lower                        a file from before the last start: a backup, an older snapshot. It is refused

A file that is set back to a moment after the last start looks like a restart: rollback.py is for its memory. A process
that objects to a copy notes that count in its own file, so that its next start has a higher one than the copy.

Whoever notices two tells each when it next speaks; what it tells is signed by the peer itself. A process that is shown
an objection against itself is the younger one and stops. A process that others already accepted and that is shown a
higher count is the elder: it objects and carries on, and is believed by those as well that had taken the younger one
for a restart. No clocks are compared. A liar can stop nobody whose key was not copied: it would need a signature of
that peer over a count that it never had.

Where different peers have met two processes of one count first, both stop. A machine that is frozen with its memory and
goes on twice (a live snapshot) has one nonce: only what the two sign can show it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from outerloop.swarm.access.identity import Life
from outerloop.swarm.membership.incarnation_record import Incarnation, IncarnationStatements
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, Transport, Unreachable, anybody
from outerloop.swarm.timeouts import ROSTER_REFRESH_S, VIEW_S, limit
from outerloop.types import UserError

logger = logging.getLogger(__name__)
T = TypeVar("T")
MOST_PEERS = 4096
"""Peers whose process is known here, four times as many as may be members. Who was silent for longest goes first."""
MOST_REFUSED = 4
"""Refused processes that are remembered of each peer; the elder is asked again about one that was forgotten."""
MOST_INTRODUCED = 64
"""Peers that are told at once which process this is: in an open run anybody can be many."""


@dataclass
class _Known:
    """Of one peer: the process that is taken for it, and the refused ones by nonce, with the objection to each."""

    one: Incarnation
    refused: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)

    def refuse(self, other: Incarnation, objection: bytes = b"") -> None:
        self.refused[other.nonce] = objection or self.refused.get(other.nonce, b"")
        while len(self.refused) > MOST_REFUSED:
            self.refused.popitem(last=False)


class Incarnations:
    """Those of all peers, and the own one: `own` as it is told, `stopped` once it must not go on.

    life    this process
    tell    told, in one line, that another machine uses this peer's key
    """

    def __init__(self, transport: Transport, *, run: str, life: Life, tell: Callable[[str], None]) -> None:
        self._transport = transport
        self._statements = IncarnationStatements(transport.trust.signatures, run=run)
        self._protocol = f"outerloop/1/{run}/incarnation"
        self._tell = tell
        self.life = life
        self._me = self._statements.incarnation(life)
        self.own = self._me.packed
        self.stopped: UserError | None = None
        self._told, self._noticed = asyncio.Event(), asyncio.Event()
        self._taken = False  # for this peer, by another one that knew of no other process
        self._seen: set[bytes] = set()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[str, asyncio.Lock] = {}

    async def serve(self) -> None:
        """Answer from now on."""
        await self._transport.serve(self._protocol, allowed=anybody, handler=self._answer)

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` comes to. Raises UserError as soon as this process must not go on."""
        working, told = asyncio.ensure_future(work), asyncio.ensure_future(self._told.wait())
        try:
            await asyncio.wait((working, told), return_when=asyncio.FIRST_COMPLETED)
            if self.stopped is not None:
                raise self.stopped
            return working.result()
        finally:
            working.cancel()
            told.cancel()

    # this process speaks

    async def introduce(self, peers: Iterable[str]) -> None:
        """Tell these peers, by id, which process this is; the first of them, if they are many."""
        others = [peer for peer in peers if peer != self._transport.peer_id][:MOST_INTRODUCED]
        taken = await asyncio.gather(*map(self._introduce, others))
        self._taken |= any(taken) and self.stopped is None

    async def keep_introducing(self, peers: Callable[[], Iterable[str]]) -> None:
        """Tell one of them after the other, as long as this process lives, and all when a younger one is noticed."""
        turn = 0
        while self.stopped is None:
            try:
                async with limit(ROSTER_REFRESH_S):
                    await self._noticed.wait()
            except TimeoutError:
                pass
            others = sorted(peer for peer in peers() if peer != self._transport.peer_id)
            turn = (turn + 1) % max(1, len(others))
            now = others if self._noticed.is_set() else others[turn:][:1]
            self._noticed.clear()
            await self.introduce(now)

    async def heed(self, stream: Stream) -> None:
        """Take what a peer answers to a ballot, if it answers at all; then the stream has ended."""
        try:
            answer = await stream.receive_object()
        except BrokenStream:
            return  # nothing: the ballot was taken
        await self._heed(answer, stream)

    def seen(self, packed: object) -> None:
        """Tell the user of a record of this peer that another process has written, unless it is one from before."""
        one = Incarnation.read(packed)
        if one is not None and one.count >= self.life.count and self._is_twin(one):
            self._tell_of(one)

    async def _introduce(self, peer: str) -> bool:
        """Whether it takes this process for its peer."""
        try:
            async with limit(2 * VIEW_S), self._transport.open_stream(peer, self._protocol) as stream:
                await stream.send_object({"incarnation": self.own})
                answer = await stream.receive_object()
                await self._heed(answer, stream)
                return answer.get("taken") is True
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s was not told which process this is: %s", peer, error)
            return False

    async def _heed(self, answer: Request, stream: Stream) -> None:
        """What another peer knows of this one is told here."""
        known = Incarnation.read(answer.get("known"))
        if known is None or not self._is_twin(known):
            return
        if self._statements.objects(self._transport.peer_id, known, self._me, answer.get("objection")):
            self._stop("it was there before, and is still there")
        elif known.count > self.life.count and self._taken:
            await stream.send_object({"objection": self._objection(known)})
            await stream.ended()
        elif known.count > self.life.count:
            self._stop(f"it has been started {known.count} times, this one {self.life.count}: this is an older copy")
        elif known.count == self.life.count:
            self._stop("it was started from the same file")

    def _is_twin(self, one: Incarnation) -> bool:
        return one.nonce != self.life.nonce and self._statements.is_of(self._transport.peer_id, one)

    def _objection(self, younger: Incarnation) -> bytes:
        self._tell_of(younger)
        return self._statements.objection(self._me, younger)

    def _tell_of(self, twin: Incarnation) -> None:
        if twin.nonce not in self._seen:
            self._seen.add(twin.nonce)
            self._noticed.set()
            self._count_past(twin)
            self._tell(
                f"another machine has started with a copy of this peer's identity {self.life.path}, and is refused:"
                " remove that file there, and it gets an identity of its own"
            )

    def _count_past(self, copy: Incarnation) -> None:
        try:
            self.life.leave_out(copy.count)
        except (OSError, UserError) as error:  # the next start may be taken for the copy, and is told so
            logger.warning("the count of a copy could not be noted in %s: %s", self.life.path, error)

    def _stop(self, why: str) -> None:
        self.stopped = UserError(
            f"another machine runs with the identity of {self._transport.peer_id}, and {why}: this one stops. Delete"
            f" the copied key: on the machine with the copy type rm {self.life.path}, and it gets a key of its own"
        )
        self._told.set()

    # others speak

    async def accepts(self, remote: str, told: object, stream: Stream) -> bool:
        """Return whether the process that has opened this stream is taken for its peer; if not, tell it why.

        Who does not say which one it is has nothing to be told from. Raises Unreadable for what is no incarnation.
        """
        if told is None:
            return True
        one = Incarnation.read(told)
        if one is None or not self._statements.is_of(remote, one):
            raise Unreadable("an incarnation that this peer did not sign")
        async with self._asking.setdefault(remote, asyncio.Lock()):
            known = await self._look_up(remote, one)
        return known.one.nonce == one.nonce or await self._gives_way(remote, known, one, stream)

    async def _look_up(self, remote: str, one: Incarnation) -> _Known:
        """What is known of a peer, now that this process of it has spoken."""
        known = self._known.setdefault(remote, _Known(one))
        self._known.move_to_end(remote)
        while len(self._known) > MOST_PEERS:
            self._asking.pop(self._known.popitem(last=False)[0], None)
        if known.one.nonce != one.nonce:
            restarted = one.count > known.one.count and one.nonce not in known.refused
            objection = await self._ask(remote, known.one, one) if restarted else b""
            if restarted and not objection:
                known.one = one
            else:
                known.refuse(one, objection)
        return known

    async def _ask(self, remote: str, elder: Incarnation, other: Incarnation) -> bytes:
        """The objection of a process to another one; empty when it does not answer, since it has gone."""
        try:
            async with limit(VIEW_S), self._transport.open_stream(remote, self._protocol) as stream:
                await stream.send_object({"incarnation": self.own, "other": other.packed})
                answer = await stream.receive_object()
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.info("%s has started again, its process of before does not answer: %s", remote, error)
            return b""
        objection = answer.get("objection")
        if not isinstance(objection, bytes) or not self._statements.objects(remote, elder, other, objection):
            return b""
        return objection

    async def _gives_way(self, remote: str, known: _Known, one: Incarnation, stream: Stream) -> bool:
        """Tell a process that another one is taken for its peer. Whether that one has to give way, as it objects."""
        self._transport.trust.refusals.note("outsiders", remote, "another machine uses the identity of this peer, too")
        younger = known.one
        await stream.send_object({"known": younger.packed, "objection": known.refused.get(one.nonce, b"")})
        try:
            objection = (await stream.receive_object(patience_s=VIEW_S)).get("objection")
        except BrokenStream:
            return False
        if not isinstance(objection, bytes) or not self._statements.objects(remote, one, younger, objection):
            return False
        known.one = one
        known.refused.pop(one.nonce, None)
        known.refuse(younger, objection)
        return True

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        other = Incarnation.read(request.get("other"))
        if other is not None:
            await stream.send_object({"objection": self._objection_to(other)})
        elif await self.accepts(remote, request.get("incarnation"), stream):
            await stream.send_object({"taken": True})
        await stream.ended()

    def _objection_to(self, other: Incarnation) -> bytes:
        """What is told of another process with this one's id."""
        younger = other.count > self.life.count and self.stopped is None and self._is_twin(other)
        return self._objection(other) if younger else b""
