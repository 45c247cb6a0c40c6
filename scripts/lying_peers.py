"""Simulate a gather run with lying peers in one process, on a virtual clock, with exchange.trust=nobody.

The peers run the product's code for gather rounds (outerloop/swarm/gather) over the in-memory network of
tests/support/swarm. An inner phase takes INNER_S virtual seconds and computes nothing. The last peers are liars.
faulty/lie.py changes their consensus messages and their answers about commits, as in attack_liar.py. This file changes
their payloads. In all else they are honest.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from faulty.lie import Liar, lie_about_log, lies, machine_of

from outerloop.swarm.consensus.commit import Commit
from tests.support.swarm.gather_scene import Corrupt, Node, Swarm
from tests.support.swarm.virtual_clock import now_s, run

TRUST = "nobody"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAYLOADS = ("oversized", "corrupt")
"""The misbehaviours of payloads that the simulation has; its payloads are never decoded, so the others do not apply."""
LIES = (*(lie.name for lie in lies(TRUST) if lie.name != "states"), *PAYLOADS)
"""All lies of the simulation. No peer joins late, so none requests a state."""
EXPELS = ("digests",)
"""The lies that always get a liar expelled."""
LASTS_S = (20.0, 60.0)
"""Shortest and longest virtual time between two changes of the lie that a liar has in a mixed case."""


@dataclass
class Applied:
    """The commits that the honest peers have applied. `digests`: round -> digests. `views`: round -> deciding view."""

    digests: defaultdict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    views: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, commit: Commit, view: int) -> None:
        self.digests[commit.number].add(commit.digest)
        self.views[commit.number] = max(view, self.views[commit.number])

    @property
    def forks(self) -> list[int]:
        """The rounds for which two honest peers applied different commits, or one of them applied two."""
        return sorted(number for number, applied in self.digests.items() if len(applied) > 1)


def watch(node: Node, applied: Applied) -> None:
    """Record each commit that a peer applies."""
    outcomes, context = node.rounds.outcomes, node.rounds.context
    add = outcomes.add

    def recorded(commit: Commit) -> None:
        views = [decided.view for decided in context.chain.hard_state.log if decided.commit == commit]
        applied.add(commit, max(views, default=0))
        add(commit)

    outcomes.add = recorded  # type: ignore[method-assign]


class LyingNode(Node):
    """A peer that lies. `lie`: the current lie, or "". `expressed`: lie -> how often it changed what was sent."""

    lie = ""

    async def appear(self) -> None:
        self.expressed: Counter[str] = Counter()
        await super().appear()
        liar = Liar(lambda: self.lie, self._note)
        ballots: Any = self.rounds._ballots
        send = ballots.send

        def bad_send(to: str, message: Any) -> None:
            for other in liar.messages(machine_of(ballots), to, message):
                send(*other)

        ballots.send = bad_send
        lie_about_log(self.rounds.log_rpc, liar)
        uploads: Any = self.rounds.bulk.uploads
        uploads.source = SometimesCorrupt(uploads.source, lambda: self.lie == "corrupt", self._note)

    def payload(self, number: int) -> bytes:
        if self.lie == "oversized":
            self._note("oversized")
            return bytes(self.rounds._max_bytes + 1)
        return super().payload(number)

    def _note(self, lie: str) -> None:
        self.expressed[lie] += 1


class SometimesCorrupt:
    """The payloads that a liar serves, with wrong bytes while `lies` returns True."""

    def __init__(self, store: Any, lies: Callable[[], bool], note: Callable[[str], None]) -> None:
        self._honest, self._corrupt = store, Corrupt(store)
        self._lies, self._note = lies, note

    def get(self, sha: bytes) -> Any:
        if not self._lies():
            return self._honest.get(sha)
        self._note("corrupt")
        return self._corrupt.get(sha)


class Simulation:
    """One case: a swarm of `peers` peers of which `liars` have the named lie ("": none, "mixed": random ones)."""

    def __init__(self, lie: str, *, peers: int, liars: int, seed: int) -> None:
        self.lie, self.random = lie, random.Random(seed)
        self.swarm = Swarm(LETTERS[:peers], seed=seed, trust=TRUST)
        self.honest = list(self.swarm.nodes.values())[: peers - liars]
        self.liars: list[LyingNode] = []
        for node in list(self.swarm.nodes.values())[peers - liars :]:
            liar = LyingNode(node.network, node.name, node.names.values(), node.rules, inner_s=node.inner_s)
            self.swarm.nodes[node.id] = liar
            self.liars.append(liar)
        self.applied = Applied()

    def run(self, seconds: float) -> dict[str, Any]:
        """Run the swarm for these virtual seconds, and return the record. Raises what an honest peer raised."""
        return run(self._run(seconds), limit_s=seconds + 60)

    async def _run(self, seconds: float) -> dict[str, Any]:
        await self.swarm.start()
        for node in self.honest:
            watch(node, self.applied)
        changing = [asyncio.create_task(self._change(liar)) for liar in self.liars if self.lie == "mixed"]
        for liar in self.liars:
            liar.lie = "" if self.lie == "mixed" else self.lie
        await asyncio.sleep(seconds - now_s())
        for task in changing:
            task.cancel()
        return self._record(seconds)

    async def _change(self, liar: LyingNode) -> None:
        """Draw another lie for a liar again and again. Exclude those that get it expelled: it would then be ignored."""
        while True:
            liar.lie = self.random.choice([lie for lie in LIES if lie not in EXPELS])
            await asyncio.sleep(self.random.uniform(*LASTS_S))

    def _record(self, seconds: float) -> dict[str, Any]:
        views = self.applied.views
        registers = [node.rounds.witness.expelled.register for node in self.honest]
        return {
            "lie": self.lie or "calm",
            "peers": len(self.swarm.nodes),
            "liars": len(self.liars) if self.lie else 0,
            "minutes": seconds / 60,
            "rounds": min(node.done for node in self.honest),
            "failed_views": sum(views.values()),
            "rounds_with_failed_views": sum(view > 0 for view in views.values()),
            "forks": self.applied.forks,
            "expressed": dict(sorted(sum((liar.expressed for liar in self.liars), Counter()).items())),
            "expelled": sorted({peer for register in registers for peer in register.expelled}),
            "streams": self.swarm.network.opened,
            "errors": {node.name: repr(node.error) for node in self.honest if node.error},
        }
