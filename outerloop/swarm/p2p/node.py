"""One peer of the swarm: its daemon, DHT node and streams, run by one network thread.

    trainer thread --call/spawn--> network thread --unix sockets--> p2pd --TCP, Noise--> other peers

libp2p only authenticates the peer that opens a stream: any peer that can dial this peer can open a stream to every
handler. So `serve` checks the allow-list and then `allowed` before it reads a single byte, and limits the resources
that other peers may use (stream_gate.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from hivemind.dht import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.utils.multiaddr import Multiaddr

from outerloop.swarm.access.access_control import AccessControl, AllowList, RejectionLog
from outerloop.swarm.access.identity import onlooker_file
from outerloop.swarm.access.signatures import Signatures, public_key_of
from outerloop.swarm.dht.node import enter_dht
from outerloop.swarm.dht.records import SignedRecords
from outerloop.swarm.p2p.daemon import Daemon, DaemonOptions, launch, unreachable
from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.p2p.greeting import greet
from outerloop.swarm.p2p.network_thread import NetworkThread
from outerloop.swarm.p2p.probe import Probes
from outerloop.swarm.p2p.reachability import best_first
from outerloop.swarm.p2p.socket_dir import SocketFolder
from outerloop.swarm.p2p.stream_gate import StreamGate
from outerloop.swarm.p2p.transport import Handler, Unreachable
from outerloop.swarm.resource_exhaustion import EXHAUSTION, raise_file_limit
from outerloop.swarm.timeouts import DHT_S, OPEN_S, START_S, STOP_S, limit
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError, printable

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Node:
    """A running peer: its id, addresses and DHT node, and streams in both directions.

    Coroutines run in its network thread. `allow`: ids of the peers that may take part; if empty, all peers may.
    """

    peer_id: str
    addresses: list[str]
    """Full multiaddrs at which other peers can join, sorted by reachability.best_first."""
    dht: DHTNode
    member: Callable[[str], bool]
    """Returns whether the peer with this id is a member. Members take precedence over non-members in the DHT and in
    admission control. PeerSession sets this function; before that, only this peer itself counts as a member."""

    def __init__(self, options: DaemonOptions, *, allow: Sequence[str] = ()) -> None:
        raise_file_limit()
        self._options = options
        signatures = Signatures.of(options.identity_path)
        onlooker = Signatures.of(onlooker_file(options.identity_path)).peer_id if allow else ""
        self.trust = AccessControl(signatures, AllowList(allow, own=signatures.peer_id), RejectionLog(), onlooker)
        self.member = self.trust.signatures.peer_id.__eq__
        self.records = SignedRecords(self.trust, is_member=self._counts_on)
        self._gate = StreamGate(self.trust, member=self._counts_on)
        self._folder = SocketFolder()
        self._daemon: Daemon | None = None
        self._p2p: P2P | None = None
        self._opened = asyncio.Event()  # set once opening has succeeded or failed
        self._thread: NetworkThread | None = NetworkThread("outerloop-swarm")
        try:
            self.call(self._open(), timeout_s=START_S + STOP_S + DHT_S + OPEN_S)
        except BaseException:
            self.close()
            raise

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the network thread, and return its future."""
        assert self._thread is not None, "this peer is closed"
        return self._thread.spawn(work)

    def call(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Run a coroutine in the network thread, and wait for its result."""
        assert self._thread is not None, "this peer is closed"
        return self._thread.call(work, timeout_s=timeout_s)

    @asynccontextmanager
    async def open_stream(self, peer_id: str, protocol: str) -> AsyncIterator[Stream]:
        assert self._p2p is not None
        call, remote = self._p2p.call_binary_stream_handler, _peer(peer_id)
        try:
            async with limit(OPEN_S):
                opened = await EXHAUSTION.wait_out(lambda: call(remote, protocol))
        except TimeoutError as error:  # the peer may be slow, not dead
            raise BrokenStream(f"could not open a stream within {OPEN_S:.0f} s") from error
        except (P2PDaemonError, OSError, asyncio.IncompleteReadError) as error:
            raise Unreachable(printable((str(error).splitlines() or ["no reason"])[-1].lstrip(" *"))) from error
        with closing(opened[2]):
            stream = Stream(opened[1], opened[2])
            try:
                yield stream
            except BaseException:
                stream.abort()  # otherwise a remote peer that reads nothing would keep the stream open
                raise

    async def serve(self, protocol: str, *, allowed: Callable[[str], bool], handler: Handler) -> None:
        async def answer(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with (
                closing(writer),
                suppress(asyncio.CancelledError),
            ):  # cancelled because this peer is shutting down: not an error
                remote, stream = info.peer_id.to_base58(), Stream(reader, writer)
                await self._gate.answer(remote, protocol, stream, allowed=allowed, handler=handler)

        assert self._p2p is not None
        await self._p2p.add_binary_stream_handler(protocol, answer)

    def close(self) -> None:
        """Shut down the streams, the DHT node, the daemon and the network thread, and remove the sockets.

        Does nothing if the node is already closed.
        """
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        with ExitStack() as last:
            last.callback(self._folder.remove)
            last.callback(thread.stop, timeout_s=STOP_S)
            thread.call(self._shut(), timeout_s=4 * STOP_S)

    async def _open(self) -> None:
        try:
            await self._start()
        finally:
            self._opened.set()

    async def _start(self) -> None:
        self._daemon = await launch(self._options, self._folder.path)
        self._p2p = await _attach(self._daemon, self._folder.path)
        self.peer_id = self._p2p.peer_id.to_base58()
        assert self.peer_id == self.trust.signatures.peer_id
        self.addresses = best_first(str(address) for address in await self._p2p.get_visible_maddrs())
        if not self._options.observer:
            await Probes(self, seen=self.seen_at).serve()
        self.dht = await self._enter_dht(self._p2p)

    async def seen_at(self, peer_id: str) -> str:
        """Return the remote address of the connection to a peer, or "" if the peer is not connected."""
        assert self._p2p is not None
        async with limit(STOP_S):
            connected = await self._p2p.list_peers()
        return next(
            (str(peer.addrs[0]) for peer in connected if peer.peer_id.to_base58() == peer_id and peer.addrs), ""
        )

    async def _enter_dht(self, p2p: P2P) -> DHTNode:
        options = self._options
        strict = not options.open_internet  # strict: initial peers must be able to dial this peer
        try:
            async with limit(DHT_S):
                node = await enter_dht(
                    p2p,
                    initial_peers=options.initial_peers,
                    records=self.records,
                    is_member=self._counts_on,
                    observer=options.observer,
                    strict=strict,
                )
        except ValidationError as error:
            raise UserError(
                f"an initial peer refuses this peer: {error}; set the clock, or set exchange.announce=[...]"
            ) from error
        except (RuntimeError, TimeoutError) as error:
            if await self._greet(strict=strict):
                raise UserError(
                    "an initial peer answers, but not in the DHT: if the run sets exchange.allow, set the same list "
                    "here; otherwise restart this peer"
                ) from error
            raise unreachable(options.initial_peers) from error
        if self.trust.allow.closed and options.initial_peers and not await self._greet(strict=strict):
            raise unreachable(options.initial_peers)
        return node

    async def _greet(self, *, strict: bool) -> bool:
        peers = {address.rpartition("/p2p/")[2] for address in self._options.initial_peers}
        return await greet(self, peers, strict=strict)

    def _counts_on(self, peer_id: str) -> bool:
        allow = self.trust.allow
        return (allow.closed and peer_id in allow) or self.member(peer_id)

    async def _shut(self) -> None:
        await _bounded(self._opened.wait())
        if hasattr(self, "dht"):
            await _bounded(self.dht.shutdown())
        if self._p2p is not None:
            await _bounded(self._p2p.shutdown())
        if self._daemon is not None:
            await self._daemon.stop()


def _peer(peer_id: str) -> PeerID:
    """Convert a possibly untrusted peer id to hivemind's type. Raises Unreachable if it is malformed."""
    try:
        public_key_of(peer_id)
    except MalformedMessage as error:
        raise Unreachable(str(error)) from error
    return PeerID.from_base58(peer_id)


class PendingCalls(dict[UUID, asyncio.Future[bytes]]):
    """The calls of a hivemind client that wait for an answer.

    The operator `in` returns False for a call that has ended, for example by its time limit. hivemind removes such a
    call one turn of the event loop later, and would pass an answer that arrives in between to the ended future. That
    would raise InvalidStateError in the task that reads all answers, so no later call would ever be answered.
    """

    def __contains__(self, call: object) -> bool:
        return isinstance(call, UUID) and (future := self.get(call)) is not None and not future.done()


async def _attach(daemon: Daemon, folder: Path) -> P2P:
    """Return hivemind's client for the daemon, with its socket in `folder` instead of directly in /tmp."""

    class PrivateP2P(P2P):
        _UNIX_SOCKET_PREFIX = f"/unix{folder}/"

    async with limit(STOP_S):
        client = await PrivateP2P.replicate(Multiaddr(daemon.control))
    client._client.control._pending_calls = (
        PendingCalls()
    )  # no call is pending: replicate asks over a connection of its own
    return client


async def _bounded(step: Awaitable[object]) -> None:
    """Run one shutdown step for at most STOP_S, and ignore its failure.

    Without a time limit, hivemind would wait indefinitely for a daemon that has already ended.
    """
    try:
        async with limit(STOP_S):
            await step
    except (TimeoutError, OSError, P2PDaemonError) as error:
        logger.debug("shutdown step skipped: %r", error)
