"""All-gather messages over torch.distributed among processes started by torchrun. Needs no daemon, DHT or keys.

    sizes of all messages   ->   all messages, padded to the largest     two all-gathers over gloo, alongside training

The time in a collective includes waiting for late processes, so `transfer_s` includes it too. If a process is lost or
too late, the current round fails on every process that is still waiting. All later rounds of such a process fail too,
because another process may have landed the failed round. The run ends, keeps its checkpoints, and must be restarted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, TimeoutError
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed as dist

from outerloop.replica.rank_group import RankGroup, uint8_tensor
from outerloop.types import FIRST, Capabilities, Contribution, Round, RoundFailed, StateHandoff, UserError

Returned = TypeVar("Returned")


class Distributed:
    """An exchange that all-gathers messages among the processes of a process group.

    Messages are sent over a separate gloo group, whatever the backend of `group`, so that they do not interfere with
    the collectives of inner steps. All processes must construct this exchange at the same point in their program.

    Args:
        group: the processes that take part, or None for all processes.
        timeout_s: how long a collective waits for a missing process, in seconds.

    Raises:
        UserError: if torch.distributed has not been initialized.
    """

    info = Capabilities(agrees=True, waits_for_all=True, lockstep=True, measures_transfer=False, concurrent=True)

    def __init__(self, *, group: dist.ProcessGroup | None = None, timeout_s: float = 600.0) -> None:
        if not dist.is_initialized():
            raise UserError(
                f"outerloop.{type(self).__name__}() found no process group: start with torchrun, and call"
                ' torch.distributed.init_process_group("gloo") first'
            )
        self.group = dist.new_group(
            dist.get_process_group_ranks(group),
            backend="gloo",
            timeout=timedelta(seconds=timeout_s),
            use_local_synchronization=group is not None,  # only the members of `group` need to make this call
        )
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.peer = name_of(self.rank)
        self.bytes_sent = self.bytes_received = 0
        self.transfer_s = 0.0
        self.failure = ""
        self.network = ThreadPoolExecutor(1, thread_name_prefix="outerloop-gather")

    def join(self, first: Round = FIRST) -> None:
        """Do nothing: all processes have been present since the group was created."""

    def partners(self, round: Round) -> list[int]:
        """Return the ranks from which this process receives messages in a round: all ranks, including its own."""
        return list(range(self.size))

    def start(self, blob: bytes, round: Round) -> PendingRound:
        """Submit the message to the network thread, which runs rounds one at a time."""
        partners = self.partners(round)
        self.bytes_sent += len(blob) * (len(partners) - 1)
        return PendingRound(self, self.submit(self.carry, blob, partners), round)

    def submit(self, work: Callable[..., Returned], *args: Any) -> Future[Returned]:
        """Call `work` in the network thread, or raise RoundFailed there if an earlier exchange has failed."""

        def call() -> Returned:
            if self.failure:
                raise RoundFailed(self.failure)
            return work(*args)

        return self.network.submit(call)

    def carry(self, blob: bytes, partners: Sequence[int]) -> dict[int, bytes]:
        """Exchange the messages of a round by `swap`, and add the duration to `transfer_s`."""
        began_s = time.monotonic()
        messages = self.swap(blob, partners)
        self.transfer_s += time.monotonic() - began_s
        return messages

    def swap(self, blob: bytes, partners: Sequence[int]) -> dict[int, bytes]:
        """Exchange messages with `partners`. Return rank -> message for all of them, in rank order."""
        return self.gather(blob)

    def gather(self, blob: bytes) -> dict[int, bytes]:
        """Exchange messages with all processes. Return rank -> message, in rank order."""
        own = uint8_tensor(blob)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(own)]), group=self.group)
        longest = max(int(size) for size in sizes)
        padded = torch.nn.functional.pad(own, (0, longest - len(own)))
        messages = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(messages, padded, group=self.group)
        return {rank: messages[rank][: int(size)].numpy().tobytes() for rank, size in enumerate(sizes)}

    def all_gather(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Gather one message from each process outside of rounds. The bytes do not count as training traffic."""
        return PendingRound(self, self.submit(self.gather, blob), Round(number)).result(timeout_s)

    def hand_over(self, way: StateHandoff, state: Callable[[], bytes]) -> bytes:
        """Broadcast the first giver's state. Return it if this process is a taker, otherwise empty bytes.

        The first giver is always the first process. Raises RoundFailed if a process is lost or late.
        """
        if not way.takers:
            return b""
        own = state() if self.peer == way.givers[0] else b""
        content = self.ended(self.submit(RankGroup(self.group).broadcast, own))
        return content if self.peer in way.takers else b""

    def ended(self, work: Future[Returned], timeout_s: float | None = None) -> Returned:
        """Wait for a collective and return its result.

        Raises RoundFailed if a process is lost or late. Every later call then raises RoundFailed too.
        """
        if self.failure:
            raise RoundFailed(self.failure)
        try:
            return work.result(timeout_s)
        except (RuntimeError, TimeoutError, CancelledError) as error:
            [reason, *_] = str(error).strip().splitlines() or [type(error).__name__]
            self.failure = f"an exchange between {self.size} processes failed: {reason}: resume the run on all of them"
            raise RoundFailed(self.failure) from error

    def close(self) -> None:
        """Wait until the pending collectives have finished; then this process may leave."""
        self.network.shutdown()

    def abort(self) -> None:
        """Leave immediately. Collectives in which other processes still wait for this process then fail."""
        self.network.shutdown(wait=False, cancel_futures=True)
        if hasattr(self, "group"):
            dist.destroy_process_group(self.group)
            del self.group  # the group's connections close once its last reference is gone


class PendingRound:
    """A round in progress in the network thread."""

    def __init__(self, exchange: Distributed, future: Future[dict[int, bytes]], round: Round) -> None:
        self.exchange, self.future, self.round = exchange, future, round

    def wait(self, timeout_s: float) -> list[Contribution]:
        """Return the messages of the partners, including this process's own.

        Raises RoundFailed if a process is lost or late.
        """
        contributions = self.result(timeout_s)
        self.exchange.bytes_received += sum(len(c.blob) for c in contributions if c.peer != self.exchange.peer)
        return contributions

    def arrived(self) -> bool:
        """Return whether `wait` would not block, because the collective has finished or an exchange has failed."""
        return bool(self.exchange.failure) or self.future.done()

    def result(self, timeout_s: float) -> list[Contribution]:
        """Return the messages as `wait` does, without counting received bytes."""
        messages = self.exchange.ended(self.future, timeout_s)
        return [Contribution(name_of(rank), self.round, blob) for rank, blob in messages.items()]


def name_of(rank: int) -> str:
    """Return the peer name of a process. Names sort in rank order for up to a million ranks."""
    return f"{rank:06d}"
