"""Exchange messages between workers that run as threads of one process and take turns.

This lets many virtual workers share one device, and makes runs bitwise reproducible.

A worker holds the turn while it computes and releases it while it waits for a round, so only one worker computes at a
time, and its inner steps can use the whole machine. A worker restores its own random state when it takes the turn. A
round completes when all workers have submitted their messages.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from outerloop import rng
from outerloop.exchange_protocols import Read
from outerloop.types import FIRST, Capabilities, Contribution, Refusals, Round, Stopped, UserError


class Hub:
    """State shared by the workers of one process: the turn, and the messages of rounds in progress.

    Raises:
        UserError: if `size` is not positive.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UserError(f"workers={size} must be at least 1: set workers=4")
        self.size = size
        self.changed = threading.Condition()
        self.holder: int | None = None
        self.messages: dict[Hashable, dict[int, bytes]] = defaultdict(dict)
        self.read: dict[Round, tuple[Any, int]] = {}
        self.fetched: dict[Hashable, set[int]] = defaultdict(set)
        self.stop_reason = ""

    def stop(self, reason: str) -> None:
        """Wake all waiting workers, which then raise Stopped with this reason."""
        with self.changed:
            self.stop_reason = self.stop_reason or reason
            self.changed.notify_all()

    def check_stop(self) -> None:
        """Raise Stopped if `stop` was called."""
        if self.stop_reason:
            raise Stopped(self.stop_reason)

    def put(self, round: Hashable, rank: int, blob: bytes) -> None:
        """Store one worker's message for a round."""
        with self.changed:
            self.messages[round][rank] = blob
            self.changed.notify_all()

    def wait_for(self, round: Hashable, ranks: Sequence[int]) -> None:
        """Wait until these workers have submitted their messages or the run stops. The caller must hold `changed`."""
        self.changed.wait_for(lambda: bool(self.stop_reason) or self.messages[round].keys() >= set(ranks))

    def fetch(self, round: Hashable, rank: int, ranks: Sequence[int]) -> dict[int, bytes]:
        """Return a mapping from rank to message for the workers in `ranks`, on behalf of worker `rank`.

        Deletes the round's messages once every worker has fetched the ones that it needs.
        """
        messages = {partner: self.messages[round][partner] for partner in sorted(ranks)}
        self.fetched[round].add(rank)
        if len(self.fetched[round]) == self.size:
            del self.messages[round], self.fetched[round]
        return messages


class InProcess:
    """The exchange of one worker, connected to the other workers by a `Hub`.

    Args:
        hub: the hub that all workers of the process share.
        rank: this worker's index, 0 .. hub.size - 1.
    """

    info = Capabilities(agrees=True, waits_for_all=True, lockstep=True, measures_transfer=True, concurrent=False)
    transfer_s = 0.0

    def __init__(self, *, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size, self.peer = hub, rank, hub.size, name_of(rank)
        self.bytes_sent = self.bytes_received = 0
        self.random = rng.get_state()

    def join(self, first: Round = FIRST) -> None:
        """Wait for the first turn. Raises Stopped if the run stops."""
        with self.hub.changed:
            self.take_turn()

    def partners(self, round: Round) -> list[int]:
        """Return the ranks from which this worker receives messages in a round: all ranks, including its own."""
        return list(range(self.size))

    def start(self, blob: bytes, round: Round) -> PendingRound:
        """Submit the message. One copy per other worker in the round counts as sent."""
        partners = self.partners(round)
        self.bytes_sent += len(blob) * (len(partners) - 1)
        self.hub.put(round, self.rank, blob)
        return PendingRound(self, round, partners)

    def wait(self, round: Round, partners: Sequence[int], timeout_s: float) -> list[Contribution]:
        """Release the turn until all partners have submitted their messages, and return these messages.

        `timeout_s` is ignored, because the other workers must compute one after another and cannot be lost. Raises
        Stopped if the run stops.
        """
        messages = self.exchange_for(round, partners)
        self.bytes_received += sum(len(blob) for rank, blob in messages.items() if rank != self.rank)
        return [Contribution(name_of(rank), round, blob) for rank, blob in messages.items()]

    def decode_shared(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """Call `read` once for all workers and share its result. In gossip, each worker calls `read` itself."""
        if not self.info.agrees:
            return read({})
        what, takers = self.hub.read.pop(round) if round in self.hub.read else (read({}), 0)
        if takers + 1 < self.size:
            self.hub.read[round] = what, takers + 1
        return what

    def all_gather(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Gather one message from each worker outside of rounds. The bytes do not count as training traffic."""
        self.hub.put(("meeting", number), self.rank, blob)
        messages = self.exchange_for(("meeting", number), range(self.size))
        return [Contribution(name_of(rank), Round(number), blob) for rank, blob in messages.items()]

    def exchange_for(self, key: Hashable, ranks: Sequence[int]) -> dict[int, bytes]:
        """Release the turn until these workers have submitted messages under `key`. Return rank -> message."""
        with self.hub.changed:
            self.give_turn()
            self.hub.wait_for(key, ranks)
            self.take_turn()
            return self.hub.fetch(key, self.rank, ranks)

    def take_turn(self) -> None:
        """Wait for the turn, take it, and restore this worker's random state. The caller must hold `changed`."""
        self.hub.changed.wait_for(lambda: bool(self.hub.stop_reason) or self.hub.holder is None)
        self.hub.check_stop()
        self.hub.holder = self.rank
        rng.set_state(self.random)

    def give_turn(self) -> None:
        """Save the random state and release the turn if this worker has the turn. The caller must hold `changed`."""
        if self.hub.holder == self.rank:
            self.random = rng.get_state()
            self.hub.holder = None
            self.hub.changed.notify_all()

    def close(self) -> None:
        """Release the turn for the last time."""
        with self.hub.changed:
            self.give_turn()

    def abort(self) -> None:
        """Call `close`, because it does not wait for the other workers."""
        self.close()


class PendingRound:
    """A round that one worker has started."""

    def __init__(self, exchange: InProcess, round: Round, partners: Sequence[int]) -> None:
        self.exchange, self.round, self.partners = exchange, round, partners

    def wait(self, timeout_s: float) -> list[Contribution]:
        """Wait for the round, as `InProcess.wait` does."""
        return self.exchange.wait(self.round, self.partners, timeout_s)

    def arrived(self) -> bool:
        """Return False, because whether a round lands early must not depend on the random order of turns."""
        return False


def name_of(rank: int) -> str:
    """Return the peer name of a worker. Names sort in rank order for up to 1,000 workers."""
    return f"{rank:03d}"
