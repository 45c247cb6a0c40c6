"""Workers as threads of one process, taking turns: many virtual workers on one device, reproducible bit for bit.

A worker holds the turn while it computes and hands it on while it waits for a round, so only one computes at a time:
each has the whole machine for its inner steps, and its own random state travels with the turn. A round completes when
all workers have put their message in.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from outerloop import rng
from outerloop.exchange.static_membership import StaticMembership
from outerloop.protocols import Read
from outerloop.types import FIRST, Contribution, ExecutorHandoff, Refusals, Round, Stopped, UserError


class Hub:
    """What the workers of one process share: the turn, and the messages of the rounds under way.

    Raises:
        UserError: if `size` is not positive.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UserError(f"workers={size} must be at least 1: type workers=4")
        self.size = size
        self.changed = threading.Condition()
        self.holder: int | None = None
        self.messages: dict[Hashable, dict[int, bytes]] = defaultdict(dict)
        self.read: dict[Round, tuple[Any, int]] = {}
        self.fetched: dict[Hashable, set[int]] = defaultdict(set)
        self.stop_reason = ""

    def stop(self, reason: str) -> None:
        """Wake everyone who waits; they leave with Stopped."""
        with self.changed:
            self.stop_reason = self.stop_reason or reason
            self.changed.notify_all()

    def check_stop(self) -> None:
        """Raises Stopped after `stop`."""
        if self.stop_reason:
            raise Stopped(self.stop_reason)

    def put(self, round: Hashable, rank: int, blob: bytes) -> None:
        """One worker's message of one round."""
        with self.changed:
            self.messages[round][rank] = blob
            self.changed.notify_all()

    def wait_for(self, round: Hashable, ranks: Sequence[int]) -> None:
        """Until the messages of these workers are in, or the run stops. Call with `changed` held."""
        self.changed.wait_for(lambda: bool(self.stop_reason) or self.messages[round].keys() >= set(ranks))

    def fetch(self, round: Hashable, rank: int, ranks: Sequence[int]) -> dict[int, bytes]:
        """The messages of these workers; forgotten when every worker has fetched what it wants of the round."""
        messages = {partner: self.messages[round][partner] for partner in sorted(ranks)}
        self.fetched[round].add(rank)
        if len(self.fetched[round]) == self.size:
            del self.messages[round], self.fetched[round]
        return messages


class InProcess(StaticMembership):
    """One worker's end of a `Hub`.

    Args:
        hub: shared by all workers of the process.
        rank: this worker's place, 0 .. hub.size - 1.
    """

    agrees = True
    waits_for_all = True
    lockstep = tells_moving = True
    concurrent = False
    moving_s = 0.0

    def __init__(self, *, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size, self.peer = hub, rank, hub.size, name_of(rank)
        self.bytes_sent = self.bytes_received = 0
        self.random = rng.get_state()

    @property
    def alive(self) -> int:
        """All: a thread cannot be lost alone."""
        return self.size

    def join(self, first: Round = FIRST) -> None:
        """Wait for the first turn. Raises Stopped."""
        with self.hub.changed:
            self.take_turn()

    def partners(self, round: Round) -> list[int]:
        """Whose messages this worker gets in a round, its own included: everybody's."""
        return list(range(self.size))

    def start(self, blob: bytes, round: Round) -> PendingRound:
        """Put the message in; counts one copy for each partner."""
        partners = self.partners(round)
        self.bytes_sent += len(blob) * (len(partners) - 1)
        self.hub.put(round, self.rank, blob)
        return PendingRound(self, round, partners)

    def wait(self, round: Round, partners: Sequence[int], timeout_s: float) -> list[Contribution]:
        """Hand on the turn until the partners are there. Raises Stopped when the run ends.

        `timeout_s` has no meaning here: the others are computing, in turn, and cannot be lost.
        """
        messages = self.exchange_for(round, partners)
        self.bytes_received += sum(len(blob) for rank, blob in messages.items() if rank != self.rank)
        return [Contribution(name_of(rank), round, blob) for rank, blob in messages.items()]

    def once(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """Read by the first worker that asks, forgotten when the last one has it; each its own in gossip."""
        if not self.agrees:
            return read({})
        what, takers = self.hub.read.pop(round) if round in self.hub.read else (read({}), 0)
        if takers + 1 < self.size:
            self.hub.read[round] = what, takers + 1
        return what

    def meet(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Everybody's bytes of one meeting. Not counted: it is a look at the whole, not training."""
        self.hub.put(("meeting", number), self.rank, blob)
        messages = self.exchange_for(("meeting", number), range(self.size))
        return [Contribution(name_of(rank), Round(0), blob) for rank, blob in messages.items()]

    def hand_over(self, way: ExecutorHandoff, state: Callable[[], bytes]) -> bytes:
        """The first giver puts its state in, and the takers read it there. Raises Stopped."""
        if not way.takers:
            return b""
        own = state() if self.peer == way.givers[0] else b""
        met = {one.peer: bytes(one.blob) for one in self.meet(own, way.number, 0.0)}
        return met[way.givers[0]] if self.peer in way.takers else b""

    def exchange_for(self, key: Hashable, ranks: Sequence[int]) -> dict[int, bytes]:
        """The messages of these workers under one key, once all are in."""
        with self.hub.changed:
            self.give_turn()
            self.hub.wait_for(key, ranks)
            self.take_turn()
            return self.hub.fetch(key, self.rank, ranks)

    def counters(self) -> dict[str, float]:
        """Nothing else."""
        return {}

    def take_turn(self) -> None:
        """Wait until nobody computes, then bring the own random state. Call with `changed` held."""
        self.hub.changed.wait_for(lambda: bool(self.hub.stop_reason) or self.hub.holder is None)
        self.hub.check_stop()
        self.hub.holder = self.rank
        rng.set_state(self.random)

    def give_turn(self) -> None:
        """Let the next worker compute. Call with `changed` held."""
        if self.hub.holder == self.rank:
            self.random = rng.get_state()
            self.hub.holder = None
            self.hub.changed.notify_all()

    def close(self) -> None:
        """Hand on the turn for good."""
        with self.hub.changed:
            self.give_turn()

    def abort(self) -> None:
        """The same as `close`: nobody needs a thread that has gone."""
        self.close()


class PendingRound:
    """A round of one worker under way."""

    def __init__(self, exchange: InProcess, round: Round, partners: Sequence[int]) -> None:
        self.exchange, self.round, self.partners = exchange, round, partners

    def wait(self, timeout_s: float) -> list[Contribution]:
        """See `InProcess.wait`."""
        return self.exchange.wait(self.round, self.partners, timeout_s)

    def arrived(self) -> bool:
        """Never: whose turn has come when is chance, and a run shall be the same every time."""
        return False


def name_of(rank: int) -> str:
    """Peer name of a worker: sorts like its rank."""
    return f"{rank:03d}"
