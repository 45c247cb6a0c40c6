"""The processes of one island, or of those that hold the same of it: the first of them leads, and tells the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch import distributed as dist


class RankGroup:
    """Words inside an island, in the group that its inner steps use as well: from the same thread, so nothing mixes.

    While the leader waits for a round, the others wait for its word; the timeout of the group must be the longer one.

    Args:
        group: None: this process alone.
        tag: of words from one process to one other, which do not mix with words of other tags.
    """

    def __init__(self, group: dist.ProcessGroup | None, *, tag: int = 0) -> None:
        self.group, self.tag = group, tag
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        self.leads = self.rank == 0
        on_cpu = group is None or "cpu:" in dist.get_backend_config(group)
        self.device = torch.device("cpu") if on_cpu else torch.accelerator.current_accelerator()

    @property
    def threads(self) -> bool:
        """Whether another thread may speak `apart`: over gloo; nccl has no tags."""
        return self.device == torch.device("cpu")

    def apart(self) -> Self:
        """The same processes, for another thread: all words but sums go from one process to one other."""
        return type(self)(self.group, tag=1)

    def spread(self, data: bytes) -> bytes:
        """The leader's bytes, at all; what the others come with has no meaning."""
        if self.group is None:
            return data
        if self.tag:
            return self.deal([data] * self.size)
        size = torch.tensor([len(data)], device=self.device)
        dist.broadcast(size, group=self.group, group_src=0)
        content = tensor_of(data) if self.leads else torch.empty(int(size), dtype=torch.uint8)
        content = content.to(self.device)
        dist.broadcast(content, group=self.group, group_src=0)
        return content.cpu().numpy().tobytes()

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes in their order, at the leader; nothing at the others."""
        if self.leads:
            return [data, *(self.taken(rank) for rank in range(1, self.size))]
        self.give(data, 0)
        return []

    def deal(self, parts: Sequence[bytes]) -> bytes:
        """To each rank its part; the leader has them all, and what the others come with has no meaning."""
        if not self.leads:
            return self.taken(0)
        for rank in range(1, self.size):
            self.give(parts[rank], rank)
        return parts[0]

    def give(self, data: bytes, rank: int) -> None:
        """Bytes to one rank, which takes them."""
        dist.send(torch.tensor([len(data)], device=self.device), group=self.group, group_dst=rank, tag=self.tag)
        if data:
            dist.send(tensor_of(data).to(self.device), group=self.group, group_dst=rank, tag=self.tag)

    def taken(self, rank: int) -> bytes:
        """What a rank gives."""
        size = torch.empty(1, dtype=torch.int64, device=self.device)
        dist.recv(size, group=self.group, group_src=rank, tag=self.tag)
        content = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if len(content):
            dist.recv(content, group=self.group, group_src=rank, tag=self.tag)
        return content.cpu().numpy().tobytes()

    def sum(self, values: Sequence[float]) -> list[float]:
        """Value by value over all ranks, in float64, at all."""
        if self.group is None:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def same(self, x: Tensor) -> Tensor:
        """The leader's tensor, at all; the others come with one of its shape and dtype, which is overwritten."""
        x = x.contiguous()
        if self.group is not None:
            dist.broadcast(x, group=self.group, group_src=0)
        return x


def tensor_of(data: bytes | memoryview) -> Tensor:
    """(n,) uint8, a copy."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
