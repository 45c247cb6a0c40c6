"""Givers and askers in memory, and holders that do not keep to the protocol."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

from outerloop.swarm.p2p.framing import END_MARK, Stream
from outerloop.swarm.p2p.transport import Request
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.content_store import ContentStore
from outerloop.swarm.transfer.uploads import RateLimiter
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport

PROTOCOL = "outerloop/1/r/bulk"
MANY = 1 << 50


def some_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def sha_of(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


class Node:
    """A peer that holds content and asks for it."""

    def __init__(self, network: MemoryNetwork, name: str, *, limiter: RateLimiter | None = None) -> None:
        self.store = ContentStore()
        self.bulk = Bulk(
            MemoryTransport(network, name),
            self.store,
            run="r",
            allowed=lambda peer_id: peer_id != "stranger",
            limiter=limiter,
        )

    async def get(self, content: bytes, holders: list[str], **options: Any) -> bytes:
        common: dict[str, Any] = {"at_most": MANY, "timeout_s": 3000.0}
        return await self.bulk.get(sha_of(content), len(content), holders, **{**common, **options})


async def nodes(network: MemoryNetwork, names: str, content: bytes = b"", **options: Any) -> list[Node]:
    """The first asks; the others hold `content`. A name is one letter."""
    made = [Node(network, name, **options) for name in names]
    for node in made:
        await node.bulk.serve()
    for node in made[1:]:
        node.store.put(content)
    return made


async def liar(network: MemoryNetwork, name: str, answer: Callable[[Request], bytes], claims: int) -> list[Request]:
    """A holder that claims a length and then writes what it likes; what it was asked."""
    asked: list[Request] = []

    async def give(remote: str, request: Request, stream: Stream) -> None:
        asked.append(request)
        await stream.send_object({"length": claims})
        await stream.write(answer(request))
        await stream.ended()

    await MemoryTransport(network, name).serve(PROTOCOL, allowed=lambda peer_id: True, handler=give)
    return asked


def zeros(size: int) -> Callable[[Request], bytes]:
    return lambda request: bytes(size - request["offset"]) + END_MARK
