"""Gossip through torch.distributed: every round the processes are dealt into small random groups, the same for all by
the seed, and only those of a group pass bytes, from one to the other. No collective.

    size of the own message to each partner, theirs back   ->   the message, theirs back      isend and irecv over gloo

NoLoCo (arXiv 2506.10911) deals pairs. What does not fill a group stays a smaller one; one left alone takes a solo step.
A process goes on as soon as its partners have come, whatever the others do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from outerloop.exchange.distributed import Distributed
from outerloop.gossip_groups import checked_group, group_of
from outerloop.replica.rank_group import tensor_of
from outerloop.types import Round


class DistributedGossip(Distributed):
    """Meets `together - 1` other processes a round.

    Args:
        together: processes that meet, 2 or more.
        seed: of the dealing; equal in all processes.
        group, timeout_s: as for Distributed.

    Raises:
        UserError: if `together` is below 2, or when torch.distributed has not been initialized.
    """

    agrees = False

    def __init__(
        self, *, together: int, seed: int, group: dist.ProcessGroup | None = None, timeout_s: float = 600.0
    ) -> None:
        self.together, self.seed = checked_group("exchange.together", together), seed
        super().__init__(group=group, timeout_s=timeout_s)

    def partners(self, round: Round) -> list[int]:
        """This process's group of the round, in order of rank."""
        return group_of(self.rank, size=self.size, group=self.together, seed=self.seed, round=round)

    def swap(self, blob: bytes, partners: Sequence[int]) -> dict[int, bytes]:
        """The bytes of these processes in the order of ranks."""
        others = [rank for rank in partners if rank != self.rank]
        sizes = {rank: torch.zeros(1, dtype=torch.int64) for rank in others}
        self.pass_on(torch.tensor([len(blob)]), sizes)
        messages = {rank: torch.empty(int(size), dtype=torch.uint8) for rank, size in sizes.items()}
        self.pass_on(tensor_of(blob), messages)
        return {rank: blob if rank == self.rank else messages[rank].numpy().tobytes() for rank in partners}

    def pass_on(self, own: Tensor, theirs: Mapping[int, Tensor]) -> None:
        """`own` to each of them, and what each of them sends into `theirs`."""
        sends = [dist.isend(own, group=self.group, group_dst=rank) for rank in theirs]
        receives = [dist.irecv(x, group=self.group, group_src=rank) for rank, x in theirs.items()]
        for work in filter(None, sends + receives):
            work.wait()
