"""Everybody's bytes through torch.distributed, for a cluster that torchrun has started: no daemon, no DHT, no keys.

    sizes of all messages   ->   all of them, padded to the largest       two all-gathers over gloo, beside the training

A collective does not tell moving bytes from waiting for a process that is late: `moving_s` counts all of it.
A collective that fails has lost a process: the round fails, and so does every later one, so the run ends with its
checkpoints and is started again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, TimeoutError
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed as dist

from outerloop.exchange.static_membership import StaticMembership
from outerloop.protocols import Read
from outerloop.replica.rank_group import RankGroup, tensor_of
from outerloop.types import FIRST, Contribution, ExecutorHandoff, Refusals, Round, RoundFailed, UserError

Returned = TypeVar("Returned")


class Distributed(StaticMembership):
    """Gather between the processes of a process group.

    A gloo group of its own carries the bytes, whatever the backend of the one that is given, so that collectives of the
    inner steps do not get in between. All of them make it at the same point of their program.

    Args:
        group: whose processes meet; None: all.
        timeout_s: the longest that one collective waits for a process that does not come.

    Raises:
        UserError: when torch.distributed has not been initialized.
    """

    agrees = True
    waits_for_all = True
    lockstep = concurrent = True
    tells_moving = False

    def __init__(self, *, group: dist.ProcessGroup | None = None, timeout_s: float = 600.0) -> None:
        if not dist.is_initialized():
            raise UserError(
                f"outerloop.{type(self).__name__}() finds no process group: start with torchrun, and call"
                ' torch.distributed.init_process_group("gloo") before it'
            )
        self.group = dist.new_group(
            dist.get_process_group_ranks(group),
            backend="gloo",
            timeout=timedelta(seconds=timeout_s),
            use_local_synchronization=group is not None,  # who is not of the group takes no part in making it
        )
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.peer = name_of(self.rank)
        self.bytes_sent = self.bytes_received = 0
        self.moving_s = 0.0
        self.network = ThreadPoolExecutor(1, thread_name_prefix="outerloop-gather")

    @property
    def alive(self) -> int:
        """All: a process that is lost takes the group with it."""
        return self.size

    def join(self, first: Round = FIRST) -> None:
        """All processes are there since the group was made."""

    def partners(self, round: Round) -> list[int]:
        """Whose messages this process gets in a round, its own included: everybody's."""
        return list(range(self.size))

    def start(self, blob: bytes, round: Round) -> PendingRound:
        """Hand the message to the network thread, which carries one round after another."""
        partners = self.partners(round)
        self.bytes_sent += len(blob) * (len(partners) - 1)
        return PendingRound(self, self.network.submit(self.carry, blob, partners), round)

    def carry(self, blob: bytes, partners: Sequence[int]) -> dict[int, bytes]:
        """The same as `swap`, its time counted."""
        began_s = time.monotonic()
        messages = self.swap(blob, partners)
        self.moving_s += time.monotonic() - began_s
        return messages

    def swap(self, blob: bytes, partners: Sequence[int]) -> dict[int, bytes]:
        """The bytes of these processes in the order of ranks."""
        return self.gather(blob)

    def gather(self, blob: bytes) -> dict[int, bytes]:
        """The bytes of all processes in the order of ranks."""
        own = tensor_of(blob)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(own)]), group=self.group)
        longest = max(int(size) for size in sizes)
        padded = torch.nn.functional.pad(own, (0, longest - len(own)))
        messages = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(messages, padded, group=self.group)
        return {rank: messages[rank][: int(size)].numpy().tobytes() for rank, size in enumerate(sizes)}

    def once(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """A process of its own: read here."""
        return read({})

    def meet(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Everybody's bytes. Not counted: it is a look at the whole, not training."""
        return PendingRound(self, self.network.submit(self.gather, blob), Round(number)).result(timeout_s)

    def hand_over(self, way: ExecutorHandoff, state: Callable[[], bytes]) -> bytes:
        """One broadcast by the first process, which is the first giver. Raises RoundFailed."""
        if not way.takers:
            return b""
        own = state() if self.peer == way.givers[0] else b""
        content = self.ended(self.network.submit(RankGroup(self.group).spread, own))
        return content if self.peer in way.takers else b""

    def ended(self, work: Future[Returned], timeout_s: float | None = None) -> Returned:
        """What comes of a collective. Raises RoundFailed when a process is lost or does not come in time."""
        try:
            return work.result(timeout_s)
        except (RuntimeError, TimeoutError, CancelledError) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise RoundFailed(f"an exchange between {self.size} processes failed: {reason[0]}") from error

    def counters(self) -> dict[str, float]:
        """Nothing else."""
        return {}

    def close(self) -> None:
        """What is under way ends; then this process may leave."""
        self.network.shutdown()

    def abort(self) -> None:
        """Leave at once: what the others want of this process fails."""
        self.network.shutdown(wait=False, cancel_futures=True)
        if hasattr(self, "group"):
            dist.destroy_process_group(self.group)
            del self.group  # its connections close with the last reference


class PendingRound:
    """One round under way in the network thread."""

    def __init__(self, exchange: Distributed, future: Future[dict[int, bytes]], round: Round) -> None:
        self.exchange, self.future, self.round = exchange, future, round

    def wait(self, timeout_s: float) -> list[Contribution]:
        """The partners' messages, the own one included. Raises RoundFailed."""
        contributions = self.result(timeout_s)
        self.exchange.bytes_received += sum(len(c.blob) for c in contributions if c.peer != self.exchange.peer)
        return contributions

    def arrived(self) -> bool:
        """Whether the collective is over."""
        return self.future.done()

    def result(self, timeout_s: float) -> list[Contribution]:
        """The same, not counted."""
        messages = self.exchange.ended(self.future, timeout_s)
        return [Contribution(name_of(rank), self.round, blob) for rank, blob in messages.items()]


def name_of(rank: int) -> str:
    """Peer name of a process: sorts like its rank, of up to a million."""
    return f"{rank:06d}"
