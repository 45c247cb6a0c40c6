"""Gossiping peers in memory: workers of different speeds with weights of their own, and what became of them."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any, cast

from outerloop.swarm.gossip.pairing_timeout import PairingTimeout
from outerloop.swarm.gossip.partner_policy import RandomPartners, ScheduledPartners
from outerloop.swarm.gossip.runner import GossipRunner
from outerloop.swarm.membership.formation import Formation
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.content_store import ContentStore
from outerloop.types import Contribution, Round
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s

ALPHA, BETA = 0.5, 0.7


class Names(dict[str, str]):
    """A membership that is known from the start."""

    session = "r"

    @property
    def names(self) -> dict[str, str]:
        return self


def members_of(names: list[str]) -> Formation:
    return cast(Formation, Names({name.partition("-")[2]: name for name in names}))


class Member:
    """One peer; φ (`weights`) and δ (`momentum`) of NoLoCo, each a few numbers, with γ = β."""

    def __init__(self, network: MemoryNetwork, names: list[str], index: int, *, deadline_s: float = 120.0) -> None:
        self.name = names[index]
        self.members, self.store = members_of(names), ContentStore()
        self.peer_id = list(self.members.names)[index]
        link = MemoryTransport(network, self.peer_id)
        self.bulk = Bulk(link, self.store, run="r", allowed=self.members.__contains__)
        self.gossip = GossipRunner(
            link, self.members, self.store, self.bulk,
            run="r", deadline_s=deadline_s, max_blob_bytes=1 << 20, draw=random.Random(index),
        )  # fmt: skip
        self.patience = PairingTimeout(0.25, min_s=0.01, max_s=1000)
        self.draw = random.Random(f"work {index}")
        self.rounds = 0
        self.partners: list[str] = []
        self.weights = [self.draw.gauss(0, 1) for _ in range(8)]
        self.momentum = [0.0] * 8
        self.trained = [0.0] * 8  # Σ of all inner steps

    async def serve(self) -> None:
        await self.bulk.serve()
        await self.gossip.serve()

    def begin(self, *, seed: int | None = None) -> None:
        others = [peer for peer in self.members.names if peer != self.peer_id]
        dealt = seed is not None
        self.gossip.begin(
            ScheduledPartners(list(self.members.names), self.peer_id, seed=seed or 0)
            if dealt
            else RandomPartners(others)
        )

    async def work(self, inner_s: float, *, until_s: float, noise: float = 0.0) -> None:
        """Inner steps that move the weights at random, and rounds."""
        while now_s() < until_s:
            began_s = now_s()
            await asyncio.sleep(inner_s * self.draw.uniform(0.9, 1.1))
            steps = [self.draw.gauss(0, noise) if noise else 0.0 for _ in self.weights]
            self.trained = [sum(pair) for pair in zip(self.trained, steps, strict=True)]
            theta = [x + step for x, step in zip(self.weights, steps, strict=True)]
            self.land(await self.round(struct.pack("8d", *theta), now_s() - began_s))

    async def round(self, blob: bytes, inner_s: float = 1.0) -> list[Contribution]:
        landed = await self.gossip.run_round(Round(self.rounds), blob, timeout_s=self.patience.timeout_s(inner_s))
        self.rounds += 1
        self.partners += [one.peer for one in landed if one.peer != self.name]
        return landed

    def land(self, landed: list[Contribution]) -> None:
        """δ ← α δ + β (mean θ − φ);  φ ← φ + δ."""
        thetas = [struct.unpack("8d", one.blob) for one in landed]
        for i, phi in enumerate(self.weights):
            mean = sum(theta[i] for theta in thetas) / len(thetas)
            self.momentum[i] = ALPHA * self.momentum[i] + BETA * (mean - phi)
            self.weights[i] = phi + self.momentum[i]


async def gather(network: MemoryNetwork, size: int, *, seed: int | None = None, **options: Any) -> list[Member]:
    names = [f"{index:03d}-p{index}" for index in range(size)]
    members = [Member(network, names, index, **options) for index in range(size)]
    for member in members:
        await member.serve()
    for member in members:
        member.begin(seed=seed)
    return members


def spread(members: list[Member]) -> float:
    """Root mean square over all weights of the standard deviation between peers."""
    columns = list(zip(*(member.weights for member in members), strict=True))
    means = [sum(column) / len(column) for column in columns]
    squares = [(x - mean) ** 2 for column, mean in zip(columns, means, strict=True) for x in column]
    return (sum(squares) / len(squares)) ** 0.5


def kept(members: list[Member]) -> list[float]:
    """Σ over peers of φ + α/(1 − α) δ − β/(1 − α) Σ inner steps: no pair and no solo step moves it, at any speeds.

    A pair's two impulses β (mean θ − φ) add up to β times the mean of the two inner steps, twice; each goes on to move
    its peer by 1/(1 − α) of itself, in as many rounds of its own as that takes.
    """
    momentum, step = ALPHA / (1 - ALPHA), BETA / (1 - ALPHA)
    return [sum(m.weights[i] + momentum * m.momentum[i] - step * m.trained[i] for m in members) for i in range(8)]
