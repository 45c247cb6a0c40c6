"""A network in memory behind the Transport seam, with everything that goes wrong in real ones, on demand.

    network = MemoryNetwork(seed=0, delay_s=(0.01, 0.05), break_chance=0.001)     what happens to every piece
    network.bytes_s["a"] = 1e6                   a peer's bandwidth, each way
    network.breaks.extend([0, 1000])             the next streams end after so many bytes of their answer
    network.kill("a") .freeze("a") .thaw("a") .part("a", "b") .heal()            also while streams are open

It runs on any loop; on the one of virtual_clock.py waiting costs nothing, and the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.p2p.stream_gate import StreamGate
from outerloop.swarm.p2p.transport import Handler, Unreachable
from outerloop.swarm.timeouts import OPEN_S
from tests.support.swarm.memory_keys import trust_of
from tests.support.swarm.memory_pipe import Pipe

Answer = Callable[[str, Stream], Awaitable[None]]


class MemoryNetwork:
    """Who serves what, which pipes there are, and what befalls them. `cut`: peers that refuse to be dialled."""

    def __init__(self, *, seed: int = 0, delay_s: tuple[float, float] = (0.0, 0.0), break_chance: float = 0.0) -> None:
        self.handlers: dict[tuple[str, str], Answer] = {}
        self.cut: set[str] = set()
        self.breaks: deque[int] = deque()
        self.bytes_s: defaultdict[str, float] = defaultdict(lambda: math.inf)
        self.opened = 0
        self._delay_s = delay_s
        self._break_chance = break_chance
        self._random = random.Random(seed)
        self._frozen: set[str] = set()
        self._parted: set[frozenset[str]] = set()
        self._busy_until_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._pipes: list[Pipe] = []
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were written and have not been delivered yet."""
        return sum(pipe.waiting_bytes for pipe in self._pipes)

    def kill(self, peer: str) -> None:
        """Its streams end as if it had closed them, and nobody answers its address any more."""
        self.cut.add(peer)
        for pipe in list(self._pipes):
            if peer in (pipe.source, pipe.target):
                pipe.break_off()

    def freeze(self, peer: str) -> None:
        """It accepts streams and never says a word again: a process that was stopped."""
        self._frozen.add(peer)

    def thaw(self, peer: str) -> None:
        self._frozen.discard(peer)
        self._flush()

    def part(self, one: str, other: str) -> None:
        """Nothing passes between the two; what was sent waits. Opening a stream takes until its limit in time."""
        self._parted.add(frozenset((one, other)))

    def heal(self) -> None:
        self._parted.clear()
        self._flush()

    def is_parted(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._parted

    def is_held(self, source: str, target: str) -> bool:
        """Whether bytes on their way have to wait."""
        return source in self._frozen or target in self._frozen or self.is_parted(source, target)

    def leaves_s(self, source: str, size: int) -> float:
        """When bytes that are written now are sent: after all that the peer is sending already."""
        return self._through_s(source, "up", size)

    def arrives_s(self, target: str, size: int) -> float:
        """When bytes that are sent now arrive."""
        return self._through_s(target, "down", size) + self._random.uniform(*self._delay_s)

    def is_broken_now(self) -> bool:
        """Drawn for every piece that arrives."""
        return self._random.random() < self._break_chance

    def stream(self, source: str, target: str) -> tuple[Pipe, Pipe]:
        """There and back."""
        there, back = Pipe(self, source, target), Pipe(self, target, source)
        there.partner, back.partner = back, there
        self.opened += 1
        self._pipes = [pipe for pipe in self._pipes if not pipe.over] + [there, back]
        return there, back

    def answer(self, work: Any) -> None:
        """Run a handler; what it raises reaches the loop's exception handler."""
        task = asyncio.get_running_loop().create_task(work)
        self._answering.add(task)
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "a handler failed", "exception": error})

    def _through_s(self, peer: str, way: str, size: int) -> float:
        begin_s = max(asyncio.get_running_loop().time(), self._busy_until_s[peer, way])
        self._busy_until_s[peer, way] = begin_s + size / self.bytes_s[peer]
        return self._busy_until_s[peer, way]

    def _flush(self) -> None:
        for pipe in list(self._pipes):
            pipe.flush()


class MemoryTransport:
    """One peer of the network. `allow`: the peers that it answers; none: all. `member`: who counts as one."""

    def __init__(self, network: MemoryNetwork, peer_id: str, *, allow: Iterable[str] = ()) -> None:
        self._network = network
        self.peer_id = peer_id
        self.trust = trust_of(peer_id, allow=allow)
        self.member: Callable[[str], bool] = lambda peer_id: True
        self.gate = StreamGate(self.trust, member=lambda peer_id: self.member(peer_id))

    async def serve(self, protocol: str, *, allowed: Callable[[str], bool], handler: Handler) -> None:
        async def answer(remote: str, stream: Stream) -> None:
            await self.gate.answer(remote, protocol, stream, allowed=allowed, handler=handler)

        self._network.handlers[self.peer_id, protocol] = answer

    @asynccontextmanager
    async def open_stream(self, peer_id: str, protocol: str) -> AsyncIterator[Stream]:
        network = self._network
        if peer_id in network.cut or self.peer_id in network.cut:
            raise Unreachable("connection refused")
        if network.is_parted(self.peer_id, peer_id):
            await asyncio.sleep(OPEN_S)
            raise BrokenStream(f"could not open a stream within {OPEN_S:.0f} s")
        if (peer_id, protocol) not in network.handlers:
            raise Unreachable("protocols not supported")
        there, back = network.stream(self.peer_id, peer_id)
        if network.breaks:
            back.break_after(network.breaks.popleft())
        network.answer(self._answer(peer_id, protocol, _stream(there.reader, back), back))
        try:
            yield _stream(back.reader, there)
        finally:
            there.close()

    async def _answer(self, peer_id: str, protocol: str, stream: Stream, back: Pipe) -> None:
        await self._network.handlers[peer_id, protocol](self.peer_id, stream)
        back.close()


def _stream(reader: asyncio.StreamReader, writer: Pipe) -> Stream:
    return Stream(reader, cast(Any, writer))


def stream_pair() -> tuple[Stream, Stream, Pipe, Pipe]:
    """Two ends of one stream, and the raw writer of each."""
    there, back = MemoryNetwork().stream("near", "far")
    return _stream(back.reader, there), _stream(there.reader, back), there, back
