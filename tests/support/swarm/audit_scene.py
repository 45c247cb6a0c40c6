"""Peers in memory that gather and audit each other. Their states are short texts; their trainers only give verdicts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outerloop.swarm.audit.auditor import Auditor
from outerloop.swarm.audit.desk import AuditDesk, Order, Record
from outerloop.swarm.audit.leaves import MATCH
from outerloop.swarm.audit.states import StateStore
from outerloop.swarm.transfer.uploads import RateLimiter
from tests.support.swarm.audit_states import WINDOWS, leaf_of, state_of
from tests.support.swarm.gather_scene import RUN, Node, Swarm

Judge = Callable[[Order], int]


class AuditedNode(Node):
    """A node with an auditor. `judge` is its trainer's verdict on an order; `status`: its status lines."""

    def __init__(self, *given: Any, folder: Path, probability: float, **named: Any) -> None:
        super().__init__(*given, **named)
        self.folder, self.probability = folder, probability
        self.judge: Judge = lambda order: MATCH
        self.orders: list[Order] = []
        self.status: list[str] = []

    async def appear(self) -> None:
        await super().appear()
        self.desk = AuditDesk(StateStore(self.folder / "states"), every=5)
        self.desk.machine = b"m" * 32
        self.auditor = Auditor(
            self.link,
            self.rounds,
            self.desk,
            run=RUN,
            own=self.name,
            probability=self.probability,
            file=self.folder / "verdicts.jsonl",
            limiter=RateLimiter(None),
            on_status=self.status.append,
        )
        await self.auditor.serve()
        self.replaying = asyncio.create_task(self.replay())

    async def replay(self) -> None:
        while True:
            while order := self.desk.take():
                self.orders.append(order)
                order.leaf.set_result(self.judge(order))
            await asyncio.sleep(0.5)

    def payload(self, number: int) -> bytes:
        states = [state_of(self.id, number, window) for window in range(WINDOWS + 1)]
        for state in states[:-1]:
            self.desk.store.put(number, state)
        sizes = tuple((len(state[0]), len(state[1]), len(state[2])) for state in states)
        self.desk.set_record(Record(number, tuple(leaf_of(state) for state in states), sizes))
        return self.desk.header(number).to_bytes() + super().payload(number)

    async def land(self, number: int) -> int:
        after = await super().land(number)
        self.landed[number] = self.auditor.landing(number, self.landed[number])
        return after

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        file = self.folder / "verdicts.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def expelled(self) -> set[str]:
        return {letter for letter in "abcdef" if letter not in self.rounds.context.trust.allow}


class AuditedSwarm(Swarm):
    """Audited nodes by letter."""

    def __init__(self, letters: str, folder: Path, *, probability: float = 1.0, **options: Any) -> None:
        super().__init__(letters, **options)
        for letter, plain in self.nodes.items():
            place = folder / letter
            place.mkdir()
            self.nodes[letter] = AuditedNode(
                self.network,
                plain.name,
                plain.names.values(),
                plain.rules,
                inner_s=plain.inner_s,
                folder=place,
                probability=probability,
            )

    def __getitem__(self, letter: str) -> AuditedNode:
        node = self.nodes[letter]
        assert isinstance(node, AuditedNode)
        return node

    async def until_expelled(self, letter: str, by: str) -> None:
        """Wait until all of these peers have expelled a peer. Only that peer's rounds may fail."""
        while not all(letter in self[one].expelled for one in by):
            assert not [node.error for other, node in self.nodes.items() if other != letter and node.error]
            await asyncio.sleep(0.5)


async def settled(swarm: AuditedSwarm, rounds: int = 4) -> None:
    """All audits of some rounds are done."""
    await swarm.until("".join(swarm.nodes), rounds)
    await asyncio.sleep(5)
