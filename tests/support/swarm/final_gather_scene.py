"""Members of a final gather in memory, each with a share of its own."""

from __future__ import annotations

import asyncio

from outerloop.swarm.gossip.final_gather import FinalGather
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.content_store import ContentStore
from outerloop.types import Contribution
from tests.support.swarm.gossip_scene import members_of
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport

SIZE = 300_000


class Member:
    def __init__(self, network: MemoryNetwork, names: list[str], index: int, *, wait_s: float) -> None:
        self.blob = bytes([index]) * SIZE
        self.members = members_of(names)
        self.link, self.store = MemoryTransport(network, list(self.members.names)[index]), ContentStore()
        self.bulk = Bulk(self.link, self.store, run="r", allowed=self.members.__contains__)
        self.assembly = FinalGather(
            self.link, self.members, self.store, self.bulk, run="r", wait_s=wait_s, max_blob_bytes=SIZE
        )

    async def meet(self, after_s: float = 0.0) -> list[Contribution]:
        await asyncio.sleep(after_s)
        met = await self.assembly.run(1, self.blob)
        await self.assembly.linger()
        return met


async def gather(network: MemoryNetwork, size: int, *, wait_s: float = 600.0) -> list[Member]:
    names = [f"{index:03d}-p{index}" for index in range(size)]
    members = [Member(network, names, index, wait_s=wait_s) for index in range(size)]
    for member in members:
        await member.bulk.serve()
        await member.assembly.serve()
    return members


def who(met: list[Contribution]) -> list[int]:
    assert all(one.blob == bytes([int(one.peer[:3])]) * SIZE for one in met)
    return [int(one.peer[:3]) for one in met]
