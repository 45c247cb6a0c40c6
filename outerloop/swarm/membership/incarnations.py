"""Detect two machines that use the same key: all peers accept one of them and refuse the other.

    outerloop/1/<run>/incarnation    {incarnation} ->                 <- {taken} | {known, objection}
                                     {incarnation, other} ->          <- {objection}
    with each ballot                 {incarnation} | the ballot ->    <- nothing | {known, objection}    {objection} ->

A process is identified by a nonce and a start count. It increases the count in the key's file before it sends anything.
The count distinguishes a restart from a copy. If a peer meets a process with a new nonce, and the count is

    higher than the known count    the process is a restart, or a copy that was started while the known process is
                                   alive. The peer asks the known process on a new stream. If that process is alive,
                                   it answers with an objection. If a different process answers, or none does, the known
                                   process has ended. So a peer can restart immediately after its process was killed
    equal to the known count       the same file was started twice, so it was copied. The new process is refused
    lower than the known count     the file is older than the last start: a backup or a snapshot. The new process is
                                   refused

If a key file is restored from a backup made after the last start, a process that uses it looks like a restart;
equivocation.py detects the votes that this process has forgotten. A process that objects to a copy records the copy's
count in its own file, so that its next start has a higher count.

A peer that notices two processes notifies each of them when that process next sends a message. The statements that it
relays are signed with the key that the two processes share. A process that receives an objection against itself is the
younger one and stops. A process that other peers have accepted, and that learns of a higher count, is the elder: it
objects and continues. Peers that mistook the younger process for a restart then accept the elder again. No clocks are
compared. A liar cannot stop a peer whose key was not copied: it would need that peer's signature of a count that the
peer never used.

If different peers first met different processes with the same count, both processes stop. If a machine is frozen with
its memory and resumed twice (a live snapshot), both processes have the same nonce: only messages that contradict each
other, one signed by each process, can reveal the copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from outerloop.swarm.access.identity import Life
from outerloop.swarm.membership.accepted_processes import AcceptedProcesses
from outerloop.swarm.membership.incarnation_record import Incarnation, IncarnationStatements
from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable
from outerloop.swarm.timeouts import ROSTER_REFRESH_S, VIEW_S, limit
from outerloop.types import UserError

logger = logging.getLogger(__name__)
T = TypeVar("T")
MAX_INTRODUCED = 64
"""Maximum number of peers to which this process introduces itself at once. It is limited because one machine can have
many identities in an open run."""


class Incarnations(RpcService):
    """Introduces this process to other peers, and stops or objects if another process uses its key.

    own        this process's signed incarnation (start count and nonce), as sent to other peers
    stopped    the error that makes this process stop, or None while it may continue
    life       start count, nonce and key file of this process
    others     decides which process of each other peer is accepted
    on_status  called with a one-line message for the user if another machine uses this peer's key
    """

    service = "incarnation"

    def __init__(self, transport: Transport, *, run: str, life: Life, on_status: Callable[[str], None]) -> None:
        super().__init__(transport, run=run)
        self._statements = IncarnationStatements(transport.trust.signatures, run=run)
        self._on_status = on_status
        self.life = life
        self._own_incarnation = self._statements.incarnation(life)
        self.own = self._own_incarnation.packed
        self.stopped: UserError | None = None
        self._stop_called, self._noticed = asyncio.Event(), asyncio.Event()
        self._was_accepted = False  # whether another peer has accepted this process
        self._seen: set[bytes] = set()
        self.others = AcceptedProcesses(self._statements, transport.trust.rejections, ask=self._ask)

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` and return its result. Raises UserError as soon as this process must stop."""
        working, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop_called.wait())
        try:
            await asyncio.wait((working, stop), return_when=asyncio.FIRST_COMPLETED)
            if self.stopped is not None:
                raise self.stopped
            return working.result()
        finally:
            working.cancel()
            stop.cancel()

    # messages that this process sends

    async def introduce(self, peers: Iterable[str]) -> None:
        """Send this process's incarnation to the first MAX_INTRODUCED of `peers` (ids), and process the answers."""
        others = [peer for peer in peers if peer != self._transport.peer_id][:MAX_INTRODUCED]
        accepted = await asyncio.gather(*map(self._introduce, others))
        self._was_accepted |= any(accepted) and self.stopped is None

    async def keep_introducing(self, peers: Callable[[], Iterable[str]]) -> None:
        """Introduce this process to one peer every ROSTER_REFRESH_S, in turn, until it must stop.

        When this process notices another process with its key, introduce this process to the first MAX_INTRODUCED peers
        at once.
        """
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
        """Process a peer's answer to a ballot. Peers answer only to report another process with this peer's key."""
        try:
            answer = await stream.receive_object()
        except BrokenStream:
            return  # no answer: the ballot was accepted
        await self._heed(answer, stream)

    def seen(self, packed: object) -> None:
        """Warn the user if another process wrote this peer's roster record and has not started earlier than this one.

        `packed`: the incarnation in the record.
        """
        incarnation = Incarnation.read(packed)
        if incarnation is not None and incarnation.count >= self.life.count and self._is_twin(incarnation):
            self._warn_of(incarnation)

    async def _introduce(self, peer: str) -> bool:
        """Introduce this process to a peer. Return whether the peer accepts it."""
        try:
            async with limit(2 * VIEW_S), self._stream_to(peer) as stream:
                await stream.send_object({"incarnation": self.own})
                answer = await stream.receive_object()
                await self._heed(answer, stream)
                return answer.get("taken") is True
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("this process could not be introduced to %s: %s", peer, error)
            return False

    async def _heed(self, answer: Request, stream: Stream) -> None:
        """Process a peer's report of another process with this key.

        This process stops or, if the other process is younger, sends an objection to that process.
        """
        known = Incarnation.read(answer.get("known"))
        if known is None or not self._is_twin(known):
            return
        if self._statements.objects(self._transport.peer_id, known, self._own_incarnation, answer.get("objection")):
            self._stop("it started earlier and is still running")
        elif known.count > self.life.count and self._was_accepted:
            await stream.send_object({"objection": self._objection(known)})
            await stream.ended()
        elif known.count > self.life.count:
            self._stop(f"its start count is {known.count}, but {self.life.count} here, so this key is an older copy")
        elif known.count == self.life.count:
            self._stop("its process was started from the same key file")

    def _is_twin(self, incarnation: Incarnation) -> bool:
        return incarnation.nonce != self.life.nonce and self._statements.is_of(self._transport.peer_id, incarnation)

    def _objection(self, younger: Incarnation) -> bytes:
        self._warn_of(younger)
        return self._statements.objection(self._own_incarnation, younger)

    def _warn_of(self, twin: Incarnation) -> None:
        if twin.nonce not in self._seen:
            self._seen.add(twin.nonce)
            self._noticed.set()
            self._count_past(twin)
            self._on_status(
                f"another machine has started with a copy of this peer's identity {self.life.path} and is refused:"
                " delete the copied file on that machine, which then gets its own identity"
            )

    def _count_past(self, copy: Incarnation) -> None:
        try:
            self.life.raise_start_count(copy.count)
        except (OSError, UserError) as error:  # peers may then mistake this peer's next process for the copy
            logger.warning("the start count of a copy could not be recorded in %s: %s", self.life.path, error)

    def stop(self, error: UserError) -> None:
        """Make this process stop with this error."""
        self.stopped = error
        self._stop_called.set()

    def _stop(self, why: str) -> None:
        error = UserError(
            f"another machine runs with the identity of {self._transport.peer_id}, and {why}: this process stops."
            f" Delete the copied key: run rm {self.life.path} on the machine with the copy. That machine then gets"
            " its own key"
        )
        self.stop(error)

    # messages from other peers

    async def _ask(self, remote: str, other: Incarnation) -> Request:
        return await self._call(remote, {"incarnation": self.own, "other": other.packed}, within_s=VIEW_S)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        other = Incarnation.read(request.get("other"))
        if other is not None:
            await stream.send_object({"objection": self._objection_to(other)})
        elif await self.others.accepts(remote, request.get("incarnation"), stream):
            await stream.send_object({"taken": True})
        await stream.ended()

    def _objection_to(self, other: Incarnation) -> bytes:
        """Return this process's objection to another process with its key, or b"" if that process is not younger."""
        younger = other.count > self.life.count and self.stopped is None and self._is_twin(other)
        return self._objection(other) if younger else b""
