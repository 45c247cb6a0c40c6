"""Gossip over torch.distributed without collectives: each round divides the processes into small random groups.

    exchange message sizes with each partner   ->   exchange the messages       isend and irecv over gloo

All processes draw the same groups from the seed. Messages are sent only within a group, point to point. NoLoCo (arXiv
2506.10911) uses pairs. If the processes cannot be divided evenly, the last group is smaller; a process that is alone in
its group applies only its own update. A process continues as soon as its partners' messages have arrived, without
waiting for other groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch import distributed as dist

from outerloop.exchange.distributed import Distributed
from outerloop.gossip_groups import checked_group, group_of
from outerloop.replica.rank_group import uint8_tensor
from outerloop.types import Round


class DistributedGossip(Distributed):
    """An exchange in which each process exchanges messages with `together - 1` other processes per round.

    Args:
        together: number of processes per group, 2 or more.
        seed: seed from which the groups are drawn; must be equal in all processes.
        group, timeout_s: as for Distributed.

    Raises:
        UserError: if `together` is below 2, or if torch.distributed has not been initialized.
    """

    info = replace(Distributed.info, agrees=False)

    def __init__(
        self, *, together: int, seed: int, group: dist.ProcessGroup | None = None, timeout_s: float = 600.0
    ) -> None:
        self.together, self.seed = checked_group("exchange.together", together), seed
        super().__init__(group=group, timeout_s=timeout_s)

    def partners(self, round: Round) -> list[int]:
        """Return the ranks in this process's group in a round, in ascending order, including its own."""
        return group_of(self.rank, size=self.size, group=self.together, seed=self.seed, round_id=round)

    def swap(self, blob: bytes, partners: Sequence[int]) -> dict[int, bytes]:
        """Exchange messages with `partners`. Return rank -> message for all of them, in rank order."""
        others = [rank for rank in partners if rank != self.rank]
        sizes = {rank: torch.zeros(1, dtype=torch.int64) for rank in others}
        self.pass_on(torch.tensor([len(blob)]), sizes)
        messages = {rank: torch.empty(int(size), dtype=torch.uint8) for rank, size in sizes.items()}
        self.pass_on(uint8_tensor(blob), messages)
        return {rank: blob if rank == self.rank else messages[rank].numpy().tobytes() for rank in partners}

    def pass_on(self, own: Tensor, theirs: Mapping[int, Tensor]) -> None:
        """Send `own` to each rank in `theirs`, and receive that rank's tensor into `theirs[rank]`."""
        sends = [dist.isend(own, group=self.group, group_dst=rank) for rank in theirs]
        receives = [dist.irecv(x, group=self.group, group_src=rank) for rank, x in theirs.items()]
        for work in filter(None, sends + receives):
            work.wait()
