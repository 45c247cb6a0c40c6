"""Gather between the peers of a swarm: every payload to everybody, over the open internet if need be.

A fixed number of peers; a round counts only if every member's payload reached every member. Who the members are and
which rounds count is agreed in `outerloop.swarm`; here it becomes an Exchange. Known hole: a peer that dies between
confirming to some and not to others can leave a round landed on one side only; the hash of the slow weights in the next
round's headers shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, TimeoutError
from dataclasses import replace

from outerloop.swarm.daemon import DaemonOptions
from outerloop.swarm.identity import ensure_identity
from outerloop.swarm.membership import Membership
from outerloop.swarm.payloads import Payloads
from outerloop.swarm.peer import Peer
from outerloop.swarm.roster import Record, Roster, peer_name
from outerloop.swarm.status import Status
from outerloop.swarm.timeouts import DHT_S, LINGER_S
from outerloop.swarm.unanimous import Unanimous
from outerloop.types import Contribution, Made, Round, RoundFailed, UserError

MEETINGS = 65535
"""A fragment that no schedule has: meetings are rounds of it."""


class SwarmGather:
    """Exchange between `peers` peers of one run. Construction starts this peer; `join` waits for the others.

    run               run id; peers with another one never meet
    peers             how many take part, this one included
    worker            index among the workers of this machine: they rank in this order
    identity_path     file of this peer's key; made if absent; keep it and the peer keeps its name
    initial_peers     addresses of running peers, each enough; none: this peer is the first
    host, port        where to listen; port 0 takes a free one
    announce          addresses by which others reach this peer, if not those that it listens on
    open_internet     relays, hole punching and port mapping: for peers behind a NAT
    join_timeout_s    how long to wait for the others at the start
    deadline_s        a round that takes longer has failed
    fingerprint       hash of all settings that must be equal on every peer
    max_blob_bytes    largest payload that is sent, or accepted from a peer
    """

    agrees = True

    def __init__(
        self,
        *,
        run: str,
        peers: int,
        worker: int = 0,
        identity_path: str,
        initial_peers: Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        announce: Sequence[str] = (),
        open_internet: bool = False,
        join_timeout_s: float = 120.0,
        deadline_s: float = 120.0,
        fingerprint: str = "",
        max_blob_bytes: int = 1 << 30,
    ) -> None:
        options = DaemonOptions(
            identity_path=ensure_identity(identity_path),
            host=host,
            port=port,
            announce=tuple(announce),
            initial_peers=tuple(initial_peers),
            open_internet=open_internet,
        )
        self._join_timeout_s = join_timeout_s
        self._max_blob_bytes = max_blob_bytes
        self._pending: list[_Pending] = []
        self._closed = False
        self._node = Peer(options)
        self.peer = peer_name(worker, self._node.peer_id)
        own = Record(self.peer, self._node.addresses, fingerprint, time.time())
        self._roster = Roster(self._node.dht, run=run, own=own)
        self._members = Membership(self._node, self._roster, run=run, peers=peers, own=own)
        self._payloads = Payloads(self._node, self._members, run=run, max_blob_bytes=max_blob_bytes, wait_s=deadline_s)
        self._rounds = Unanimous(self._node, self._members, self._payloads, run=run, deadline_s=deadline_s)
        try:
            self._node.call(self._appear(), timeout_s=2 * DHT_S)
        except BaseException:
            self.abort()
            raise

    @property
    def address(self) -> list[str]:
        """Full multiaddrs of this peer; each is what others type as initial peer."""
        return self._node.addresses

    @property
    def rank(self) -> int:
        """Place among the members, once joined."""
        return list(self._members.names.values()).index(self.peer)

    @property
    def size(self) -> int:
        return len(self._members.names)

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that left this peer, every copy counted."""
        return self._payloads.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._payloads.bytes_received

    def join(self) -> None:
        """Wait until all peers are there and see the same members. Raises UserError, telling who is missing."""
        self._node.call(self._members.form(timeout_s=self._join_timeout_s), timeout_s=self._join_timeout_s + DHT_S)

    def start(self, blob: bytes, round: Round) -> _Pending:
        if len(blob) > self._max_blob_bytes:
            raise UserError(f"a payload has {len(blob)} bytes; type exchange.max_blob_bytes={len(blob)} on every peer")
        pending = _Pending(self._node.spawn(self._rounds.gather(round, blob)), self._rounds, round)
        self._pending = [*(one for one in self._pending if not one.done()), pending]
        return pending

    def once(self, round: Round, make: Callable[[], Made]) -> Made:
        """A process of its own: made here."""
        return make()

    def meet(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """A gather beside the rounds of training."""
        return self.start(blob, Round(number, MEETINGS)).wait(timeout_s)

    def show(self, status: Status) -> None:
        """Let others see how this peer does, in its roster record; the bytes are filled in here."""
        counted = replace(status, bytes_sent=self.bytes_sent, bytes_received=self.bytes_received)
        self._node.spawn(self._roster.show(counted))

    def close(self, *, linger: bool = True) -> None:
        """Drop what is not decided, give the others what they still need, then leave. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            for pending in self._pending:
                pending.drop()
            if linger:
                self._node.call(self._rounds.linger(), timeout_s=2 * LINGER_S)
            self._node.call(self._roster.withdraw(), timeout_s=DHT_S)
        finally:
            self._node.close()

    def abort(self) -> None:
        """Leave at once (Ctrl-C): the record is withdrawn, the others' rounds fail."""
        self.close(linger=False)

    async def _appear(self) -> None:
        """Answer first, then be seen."""
        for part in (self._members, self._payloads, self._rounds):
            await part.serve()
        await self._roster.publish()


class _Pending:
    """One round under way in the network thread."""

    def __init__(self, future: Future[list[Contribution]], rounds: Unanimous, round: Round) -> None:
        self._future = future
        self._rounds = rounds
        self._round = round

    def wait(self, timeout_s: float) -> list[Contribution]:
        try:
            return self._future.result(timeout_s)
        except TimeoutError:
            reason = self._rounds.waits_for(self._round, timeout_s)
            if self._future.cancel():  # from now on this peer answers no
                raise RoundFailed(reason) from None
            return self._future.result()  # it was decided in this very moment
        except CancelledError:
            raise RoundFailed(f"round {self._round.number} was dropped: this peer is leaving") from None

    def done(self) -> bool:
        return self._future.done()

    def drop(self) -> None:
        self._future.cancel()
