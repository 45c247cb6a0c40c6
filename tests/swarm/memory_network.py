"""A network in memory for tests: streams are pairs of asyncio readers, and a peer can be cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from outerloop.swarm.framing import BrokenStream, Stream
from outerloop.swarm.transport import Handler, Unreachable


class MemoryWriter:
    """What `Stream` uses of a StreamWriter; feeds the reader of the other side."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def write(self, piece: bytes) -> None:
        self._reader.feed_data(bytes(piece))

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        self._reader.feed_eof()


def stream_pair() -> tuple[Stream, Stream, MemoryWriter, MemoryWriter]:
    """Two ends of one stream, and the raw writer of each."""
    near, far = asyncio.StreamReader(), asyncio.StreamReader()
    to_far, to_near = MemoryWriter(far), MemoryWriter(near)
    return Stream(near, cast(Any, to_far)), Stream(far, cast(Any, to_near)), to_far, to_near


class MemoryNetwork:
    """(peer id, protocol) -> handler. `cut`: peers that cannot be reached; `breaks`: streams that end at once."""

    def __init__(self) -> None:
        self.handlers: dict[tuple[str, str], tuple[Callable[[str], bool], Handler]] = {}
        self.cut: set[str] = set()
        self.breaks = 0


class MemoryTransport:
    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        self._network = network
        self.peer_id = peer_id

    async def serve(self, protocol: str, *, allowed: Callable[[str], bool], handler: Handler) -> None:
        self._network.handlers[self.peer_id, protocol] = allowed, handler

    @asynccontextmanager
    async def open_stream(self, peer_id: str, protocol: str) -> AsyncIterator[Stream]:
        if peer_id in self._network.cut:
            raise Unreachable("connection refused")
        near, far, to_far, to_near = stream_pair()
        answering = asyncio.create_task(self._answer(peer_id, protocol, far, to_near))
        try:
            yield near
        finally:
            to_far.close()
            await answering

    async def _answer(self, peer_id: str, protocol: str, far: Stream, to_near: MemoryWriter) -> None:
        allowed, handler = self._network.handlers[peer_id, protocol]
        if self._network.breaks:
            self._network.breaks -= 1
        elif allowed(self.peer_id):
            try:
                await handler(self.peer_id, await far.receive_object(), far)
            except (BrokenStream, TimeoutError):
                pass
        to_near.close()
