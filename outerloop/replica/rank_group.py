"""Communicate among all processes of an island, or among those that hold the same shard. Rank 0 is the leader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch import distributed as dist


class RankGroup:
    """Sends messages within an island, over the same process group as the inner steps.

    All calls must come from the same thread, so that messages are not mixed up. While the leader waits for a round, the
    other ranks wait for its message; the timeout of the group must be longer than this wait.

    Args:
        group: the processes, or None for this process alone.
        tag: tag of point-to-point messages, which separates them from messages with other tags.
    """

    def __init__(self, group: dist.ProcessGroup | None, *, tag: int = 0) -> None:
        self.group, self.tag = group, tag
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        self.is_leader = self.rank == 0
        on_cpu = group is None or "cpu:" in dist.get_backend_config(group)
        self.device = torch.device("cpu") if on_cpu else torch.accelerator.current_accelerator()

    @property
    def supports_tags(self) -> bool:
        """True if another thread may communicate via `with_tag`. This requires gloo, because NCCL has no tags."""
        return self.device == torch.device("cpu")

    def with_tag(self) -> Self:
        """Return the same group for use in another thread. It supports only bytes, which it sends point to point."""
        return type(self)(self.group, tag=1)

    def broadcast(self, data: bytes) -> bytes:
        """Broadcast the leader's bytes and return them on all ranks. The argument of the other ranks is ignored."""
        if self.group is None:
            return data
        if self.tag:
            return self.scatter([data] * self.size)
        size = torch.tensor([len(data)], device=self.device)
        dist.broadcast(size, group=self.group, group_src=0)
        content = uint8_tensor(data) if self.is_leader else torch.empty(int(size), dtype=torch.uint8)
        content = content.to(self.device)
        dist.broadcast(content, group=self.group, group_src=0)
        return content.cpu().numpy().tobytes()

    def gather(self, data: bytes) -> list[bytes]:
        """Gather bytes on the leader: return them in rank order there, and an empty list on other ranks."""
        if self.is_leader:
            return [data, *(self.recv(rank) for rank in range(1, self.size))]
        self.send(data, 0)
        return []

    def scatter(self, parts: Sequence[bytes]) -> bytes:
        """Send each rank its part from the leader, and return this rank's part.

        The argument of the other ranks is ignored.
        """
        if not self.is_leader:
            return self.recv(0)
        for rank in range(1, self.size):
            self.send(parts[rank], rank)
        return parts[0]

    def send(self, data: bytes, rank: int) -> None:
        """Send bytes to a rank, which must call `recv`."""
        dist.send(torch.tensor([len(data)], device=self.device), group=self.group, group_dst=rank, tag=self.tag)
        if data:
            dist.send(uint8_tensor(data).to(self.device), group=self.group, group_dst=rank, tag=self.tag)

    def recv(self, rank: int) -> bytes:
        """Receive bytes from a rank, which must call `send`."""
        size = torch.empty(1, dtype=torch.int64, device=self.device)
        dist.recv(size, group=self.group, group_src=rank, tag=self.tag)
        content = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if len(content):
            dist.recv(content, group=self.group, group_src=rank, tag=self.tag)
        return content.cpu().numpy().tobytes()

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        """Sum the values elementwise over all ranks, in float64, and return the sums on all ranks."""
        if self.group is None:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def broadcast_tensor(self, x: Tensor) -> Tensor:
        """Broadcast the leader's tensor and return it. Other ranks pass a buffer tensor of equal shape and dtype."""
        x = x.contiguous()
        if self.group is not None:
            dist.broadcast(x, group=self.group, group_src=0)
        return x


def uint8_tensor(data: bytes | memoryview) -> Tensor:
    """Copy the bytes to a uint8 tensor of shape (n,)."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
