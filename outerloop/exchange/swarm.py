"""Provide the base class of exchanges over a network: become visible, run rounds in the network thread, and leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from outerloop.swarm.corpus.folder import CorpusFolder
from outerloop.swarm.corpus.service import CorpusService
from outerloop.swarm.membership.common_checkpoint import Held
from outerloop.swarm.membership.session import NodeOptions, PeerSession
from outerloop.swarm.membership.status import Status
from outerloop.swarm.timeouts import DHT_S
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.uploads import limiter_for
from outerloop.types import Contribution, UserError

Result = TypeVar("Result")
MAX_BLOB_BYTES = 1 << 30
"""Default maximum size of a payload, in bytes."""


class Part(Protocol):
    """A component of this peer that serves requests from other peers."""

    async def serve(self) -> None: ...


class SwarmPending:
    """A round in progress in the network thread."""

    def __init__(self, future: Future[list[Contribution]]) -> None:
        self.future = future

    def arrived(self) -> bool:
        return self.future.done()

    def on_arrival(self, act: Callable[[list[Contribution]], None]) -> None:
        """Call `act` with the contributions once they have arrived, in the network thread or immediately."""

        def ended(future: Future[list[Contribution]]) -> None:
            if not future.cancelled() and not future.exception():
                act(future.result())

        self.future.add_done_callback(ended)

    def drop(self) -> None:
        self.future.cancel()


class SwarmExchange(ABC):
    """Base class of exchanges over a network. A subclass creates its parts in `with self.appearing() as parts`.

    options     options of this peer
    on_status   called with a line that states what this peer is waiting for
    remembers   returns whether this peer has already taken part in a session; None: this peer remembers no session

    `node` connects this peer to the network; `members` are the peers of the run that this peer knows.
    """

    def __init__(
        self,
        options: NodeOptions,
        *,
        on_status: Callable[[str], None],
        remembers: Callable[[str], bool] | None = None,
    ) -> None:
        self._rate = limiter_for(options.max_mbit)
        corpus = CorpusFolder.open(Path(options.corpus)) if options.corpus else None
        presence = PeerSession(options, on_status=on_status, remembers=remembers)
        self.peer = presence.name
        self._presence, self.node, self.members = presence, presence.node, presence.members
        self._max_blob_bytes = options.max_blob_bytes or MAX_BLOB_BYTES
        self._on_status = on_status
        self._pending: list[SwarmPending] = []
        self._closed = False
        self._status = Status()
        self._carriers: Sequence[Bulk] = ()  # the first one transfers payloads
        self._corpus = CorpusService(self.node, corpus, run=options.run, limiter=self._rate) if corpus else None
        self._after_close = ExitStack()

    @contextmanager
    def appearing(self) -> Iterator[list[Part]]:
        """Yield a list to which the block adds this peer's parts. Then start the parts and make this peer visible.

        Leaves the swarm on any error.
        """
        parts: list[Part] = []
        try:
            yield parts
            self.node.call(self._appear(parts), timeout_s=2 * DHT_S)
        except BaseException:
            self.abort()
            raise

    @property
    def address(self) -> list[str]:
        """Full multiaddrs of this peer. Another peer can use any of them as an initial peer."""
        return self.node.addresses

    @property
    def size(self) -> int:
        return len(self.members.names)

    @property
    def bytes_sent(self) -> int:
        """Bytes of content sent by this peer, counting every copy, except those of the training data."""
        return sum(bulk.bytes_sent for bulk in self._carriers)

    @property
    def bytes_received(self) -> int:
        """Bytes of content received by this peer."""
        return sum(bulk.bytes_received for bulk in self._carriers)

    @property
    def transfer_s(self) -> float:
        """Seconds during which payloads were being transferred, not counting state transfers."""
        return self._carriers[0].moving_s

    def form(self, held: Held) -> int | None:
        """Return the inner step of this peer's newest checkpoint, or None if it has no checkpoint.

        Peers that are not in lockstep each resume from their own newest checkpoint.
        """
        return max(held, default=None)

    @abstractmethod
    def linger(self) -> None:
        """Keep serving the other peers until they have received what they still need from this peer."""

    @property
    def head(self) -> str:
        """Hash of the last commit in hexadecimal, or an empty string if there is no commit."""
        return ""

    def publish_status(self, status: Status) -> None:
        """Publish this peer's status in its roster record, after filling in the byte counts and the last commit."""
        status = replace(status, bytes_sent=self.bytes_sent, bytes_received=self.bytes_received, commit=self.head)
        self._status = status
        self.node.spawn(self._presence.roster.show(status))

    def publish_loading(self, received: float | None) -> None:
        """Publish how much of the state of the run this peer has received, 0 to 1, or None if it downloads none."""
        self.publish_status(replace(self._status, loading=received))

    def on_close(self, act: Callable[[], None]) -> None:
        """Register a function that is called once this peer has left."""
        self._after_close.callback(act)

    def close(self, *, linger: bool = True) -> None:
        """Drop undecided rounds and leave the run. Idempotent.

        linger: before leaving, serve the other peers for as long as they need this one.
        """
        if self._closed:
            return
        self._closed = True
        with self._after_close:
            try:
                for pending in self._pending:
                    pending.drop()
                if linger:
                    self.linger()
            finally:
                self._presence.end()

    def abort(self) -> None:
        """Leave immediately, for example on Ctrl-C. The roster record is withdrawn, and the other peers continue."""
        self.close(linger=False)

    def _check_size(self, blob: bytes) -> None:
        if len(blob) > self._max_blob_bytes:
            raise UserError(
                f"a payload has {len(blob)} bytes, more than exchange.max_blob_bytes:"
                f" set exchange.max_blob_bytes={len(blob)} on every peer"
            )

    def _under_way(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start `work` in the network thread. Its result is a UserError if this peer may not take part (session.py)."""
        return self.node.spawn(self._presence.while_admitted(work))

    def _follow(self, pending: SwarmPending) -> None:
        """Keep track of a round, so that `close` can drop it if it is still in progress."""
        self._pending = [*(earlier for earlier in self._pending if not earlier.arrived()), pending]

    async def _appear(self, parts: list[Part]) -> None:
        for part in [*parts, self._corpus] if self._corpus else parts:
            await part.serve()
        await self._presence.appear()
