"""What the exchanges over a network share: a peer that others see, rounds under way in its network thread, leaving."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from outerloop.protocols import Read
from outerloop.swarm.membership.common_checkpoint import Held
from outerloop.swarm.membership.session import PeerSession
from outerloop.swarm.membership.status import Status
from outerloop.swarm.timeouts import DHT_S
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.types import Contribution, Refusals, Round, UserError

Came = TypeVar("Came")
MOST_BLOB_BYTES = 1 << 30
"""Of a payload where nobody says which model it is of."""


class Part(Protocol):
    """Something of this peer that others may ask."""

    async def serve(self) -> None: ...


class SwarmPending:
    """One round under way in the network thread."""

    def __init__(self, future: Future[list[Contribution]]) -> None:
        self.future = future

    def arrived(self) -> bool:
        return self.future.done()

    def drop(self) -> None:
        self.future.cancel()


class SwarmExchange(ABC):
    """`presence` has started; a subclass builds its parts `with self.appearing() as parts` and lists them there.

    max_blob_bytes   largest payload that is sent, or accepted from a peer
    tell             told, in one line, what this peer waits for
    """

    tells_moving = concurrent = True
    takes_newcomers = False
    """Whether a peer may come while the run is under way."""

    def __init__(self, presence: PeerSession, *, max_blob_bytes: int, tell: Callable[[str], None]) -> None:
        self.peer = presence.name
        self._presence, self._node, self._members = presence, presence.node, presence.members
        self._max_blob_bytes = max_blob_bytes
        self._tell = tell
        self._pending: list[SwarmPending] = []
        self._closed = False
        self._carriers: Sequence[Bulk] = ()  # of payloads first
        self.afterwards = ExitStack()  # what is held until this peer has left

    @contextmanager
    def appearing(self) -> Iterator[list[Part]]:
        """Build and list the parts in here: they answer first, then this peer is seen. What goes wrong ends it."""
        parts: list[Part] = []
        try:
            yield parts
            self._node.call(self._appear(parts), timeout_s=2 * DHT_S)
        except BaseException:
            self.abort()
            raise

    @property
    def address(self) -> list[str]:
        """Full multiaddrs of this peer; each is what others type as initial peer."""
        return self._node.addresses

    @property
    def size(self) -> int:
        return len(self._members.names)

    @property
    def bytes_sent(self) -> int:
        """Content that left this peer, every copy counted."""
        return sum(one.bytes_sent for one in self._carriers)

    @property
    def bytes_received(self) -> int:
        """Content that reached this peer."""
        return sum(one.bytes_received for one in self._carriers)

    @property
    def moving_s(self) -> float:
        """Seconds in which payloads were under way; state for others is none of them."""
        return self._carriers[0].moving_s

    def form(self, held: Held) -> int | None:
        """Return the inner step of the checkpoint to go on from, of those held; without lockstep the newest."""
        return max(held, default=None)

    @abstractmethod
    def linger(self) -> None:
        """Give the others what they still need of this peer."""

    @property
    def head(self) -> str:
        """Hash of what was last agreed on, in hex; empty where nothing is."""
        return ""

    def once(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """A process of its own: read here."""
        return read({})

    def show(self, status: Status) -> None:
        """Let others see how this peer does, in its roster record; bytes and agreement are filled in here."""
        status = replace(status, bytes_sent=self.bytes_sent, bytes_received=self.bytes_received, commit=self.head)
        self._node.spawn(self._presence.roster.show(status))

    def close(self, *, linger: bool = True) -> None:
        """Drop what is not decided, give the others what they still need, then leave. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with self.afterwards:
            try:
                for pending in self._pending:
                    pending.drop()
                if linger:
                    self.linger()
            finally:
                self._presence.end()

    def abort(self) -> None:
        """Leave at once (Ctrl-C): the record is withdrawn, the others go on."""
        self.close(linger=False)

    def _check_size(self, blob: bytes) -> None:
        if len(blob) > self._max_blob_bytes:
            raise UserError(f"a payload has {len(blob)} bytes; type exchange.max_blob_bytes={len(blob)} on every peer")

    def _under_way(self, work: Coroutine[Any, Any, Came]) -> Future[Came]:
        """Start work in the network thread. It ends in a UserError when this peer's identity is used twice."""
        return self._node.spawn(self._presence.incarnations.unless_stopped(work))

    def _follow(self, pending: SwarmPending) -> None:
        """Drop it at the end, if it is still under way then."""
        self._pending = [*(one for one in self._pending if not one.arrived()), pending]

    async def _appear(self, parts: list[Part]) -> None:
        for part in parts:
            await part.serve()
        await self._presence.appear()
