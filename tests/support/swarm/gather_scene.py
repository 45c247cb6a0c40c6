"""Peers in memory that train and gather: the whole of the rounds over a network, a disk and a clock that tests rule."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.gather.runner import GatherRunner
from outerloop.swarm.gather.settings import GatherSettings
from outerloop.swarm.transfer.uploads import ContentSource
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s

RUN = "r"
INNER_S = 10.0
MAX_BYTES = 1 << 20


class MemoryDisk(dict[str, bytes]):
    """Outlives its peer."""

    def names(self) -> list[str]:
        return list(self)

    def read(self, name: str) -> bytes:
        return self[name]

    async def write(self, name: str, content: bytes | memoryview) -> None:
        await asyncio.sleep(0.005)
        self[name] = bytes(content)

    def remove(self, name: str) -> None:
        self.pop(name, None)


class Corrupt:
    """What a peer gives that holds other bytes than it thinks."""

    def __init__(self, store: ContentSource) -> None:
        self._store = store

    def get(self, sha: bytes) -> bytes | None:
        content = self._store.get(sha)
        return None if content is None else bytes(len(content))


class Node:
    """One peer, "000-a": it trains for `inner_s`, lands what it missed, takes part. `landed`: who was in each round.

    `first`: number of the run's first round.

    `oversized`: its payloads are larger than others take. `corrupt`: it gives other bytes than it says.
    """

    def __init__(
        self, network: MemoryNetwork, name: str, names: Iterable[str], rules: GatherSettings, *, inner_s: float
    ) -> None:
        self.network, self.name, self.id = network, name, name.partition("-")[2]
        self.names = {one.partition("-")[2]: one for one in names}
        self.rules, self.inner_s, self.disk = rules, inner_s, MemoryDisk()
        self.landed: dict[int, list[tuple[str, bytes | memoryview]]] = {}
        self.landed_s: dict[int, float] = {}
        self.error: Exception | None = None
        self.life = self.first = 0
        self.oversized = self.corrupt = False
        self.allow: Iterable[str] = ()

    async def appear(self) -> None:
        self.life += 1
        self.link = MemoryTransport(self.network, self.id, allow=self.allow)
        self.rounds = GatherRunner(
            self.link,
            run=RUN,
            own=self.name,
            names=lambda: self.names,
            disk=self.disk,
            rules=self.rules,
            max_blob_bytes=16 * MAX_BYTES if self.oversized else MAX_BYTES,
        )
        if self.corrupt:
            self.rounds.bulk.uploads.source = Corrupt(self.rounds.bulk.uploads.source)
        await self.rounds.serve()

    async def start(self) -> None:
        hard_state = self.rounds.hard_state_file.read(session=RUN)
        if hard_state is None:
            await self.rounds.begin(session=RUN, roster=self.names.values(), number=self.first)
        else:
            self.rounds.resume(hard_state)
        self.training = asyncio.create_task(self.train(self.first + len(self.landed)))

    async def train(self, number: int) -> None:
        try:
            while True:
                await asyncio.sleep(self.inner_s)
                while self.rounds.decided(number):
                    number = await self.land(number)
                await self.rounds.offer(number, self.payload(number))
                number = await self.land(number)
        except Exception as error:
            self.error = error

    def payload(self, number: int) -> bytes:
        content = f"{self.name} {number} {self.life}".encode()
        return content * (1000 if not self.oversized else MAX_BYTES // 5)

    async def land(self, number: int) -> int:
        self.landed[number] = await self.rounds.outcome(number)
        self.landed_s[number] = now_s()
        return number + 1

    def who(self, number: int) -> str:
        return "".join(peer.partition("-")[2] for peer, _ in self.landed[number])

    @property
    def done(self) -> int:
        return len(self.landed)

    async def kill(self) -> None:
        self.network.kill(self.id)
        self.training.cancel()
        self.rounds.stop()

    async def restart(self, *, lost: int = 0) -> None:
        """From its disk; the trainer's checkpoint lacks so many of the rounds that it had landed."""
        self.network.cut.discard(self.id)
        self.landed = {number: one for number, one in self.landed.items() if number < self.done - lost}
        await self.appear()
        await self.start()


class Swarm:
    """Nodes by letter."""

    def __init__(
        self, letters: str, *, inner_s: dict[str, float] | None = None, seed: int = 0, first: int = 0, **options: Any
    ) -> None:
        network = {"delay_s": (0.01, 0.1), **{key: options.pop(key) for key in ("break_chance",) if key in options}}
        self.network = MemoryNetwork(seed=seed, **network)
        rules = {
            "quorum": "majority", "min_peers": None, "min_fraction": 0.0, "grace_s": 3.0, "deadline_s": 60.0,
            "absent_rounds": 2,
        }  # fmt: skip
        of = GatherSettings(peers=len(letters), **{**rules, **options})
        names = [f"{index:03d}-{letter}" for index, letter in enumerate(letters)]
        speeds = inner_s or {}
        self.nodes = {
            letter: Node(self.network, name, names, of, inner_s=speeds.get(letter, INNER_S))
            for letter, name in zip(letters, names, strict=True)
        }
        for node in self.nodes.values():
            node.first = first

    def __getitem__(self, letter: str) -> Node:
        return self.nodes[letter]

    async def start(self) -> Swarm:
        for node in self.nodes.values():
            await node.appear()
        for node in self.nodes.values():
            await node.start()
        return self

    async def until(self, letters: str, rounds: int, *, limit_s: float = 600) -> float:
        """Until these have landed so many rounds; how long that took."""
        began_s = now_s()
        while min(self[letter].done for letter in letters) < rounds:
            errors = [node.error for node in self.nodes.values() if node.error]
            assert not errors, errors
            assert now_s() < began_s + limit_s, self.describe()
            await asyncio.sleep(0.05)
        return now_s() - began_s

    def part(self, one: str, other: str) -> None:
        for a in one:
            for b in other:
                self.network.part(a, b)

    def leader(self, letters: str) -> str:
        """Of the next round, as the first of these sees it."""
        machine = self[letters[0]].rounds.context.chain
        return machine.hard_state.leader(0).partition("-")[2]

    def agree(self) -> None:
        """No two landed different rounds."""
        numbers = {number for node in self.nodes.values() for number in node.landed}
        assert numbers, "nobody landed a round"
        for number in numbers:
            seen = [node.landed[number] for node in self.nodes.values() if number in node.landed]
            assert all(one == seen[0] for one in seen), f"round {number}"

    def describe(self) -> str:
        return "; ".join(f"{letter}: {node.done}, {self.why(letter)}" for letter, node in self.nodes.items())

    def why(self, letter: str) -> str:
        return self[letter].rounds.waits_for(self[letter].done)


def memory_of(node: Node) -> HardState:
    hard_state = node.rounds.hard_state_file.read(session=RUN)
    assert hard_state is not None
    return hard_state
