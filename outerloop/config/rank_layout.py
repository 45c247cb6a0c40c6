"""Assign ranks to islands, and wrap or shard an island's model. An island is a group of ranks that act as one peer.

    torchrun's ranks        0 1 2 3 4 5
    island.ranks=2          island 0: 0 1    island 1: 2 3    island 2: 4 5
    lanes                   0 2 4 and 1 3 5: the same rank in every island

With island=replicated, DDP averages the gradients within an island. With island=sharded and island=gathered, FSDP2
averages them, with one parameter group per layer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from outerloop.inner.trainer import pick_device
from outerloop.replica.rank_group import RankGroup
from outerloop.types import UserError

LOCAL_RANK = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))
"""Rank of this process among the processes that torchrun started on this machine."""
MIN_TIMEOUT_S = 1800
"""Minimum timeout between the ranks of an island, in seconds: long, because the first rank may wait for a round."""


class RankLayout:
    """The island to which one process belongs, and its rank in that island.

    Args:
        kind: "single", "replicated", "sharded" or "gathered".
        mesh: device mesh of shape (islands, ranks), or None if the process is an island by itself.
    """

    def __init__(self, kind: str, mesh: DeviceMesh | None) -> None:
        self.kind, self.mesh = kind, mesh
        self.ranks = RankGroup(mesh["ranks"].get_group() if mesh else None)
        self.island = mesh.get_local_rank("islands") if mesh else dist.get_rank() if dist.is_initialized() else 0

    @property
    def lane_group(self) -> dist.ProcessGroup | None:
        """Group of the processes that have the same rank in their islands as this process. None means all processes."""
        return self.mesh["islands"].get_group() if self.mesh else None

    @property
    def num_lanes(self) -> int:
        """Number of ranks in an island that send separate messages."""
        return self.ranks.size if self.kind == "sharded" else 1

    @property
    def is_follower(self) -> bool:
        """True if another rank holds the outer state for this rank."""
        return self.kind == "gathered" and not self.ranks.is_leader

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module for the forward pass. If the ranks of an island hold shards, shard the model in place."""
        if self.mesh is None:
            return model
        if self.kind == "replicated":
            return DistributedDataParallel(model, process_group=self.ranks.group)
        return shard(model, self.mesh["ranks"])

    def local_windows(self, windows: Tensor) -> Tensor:
        """Return this rank's share of the windows, which have shape (n, seq_len + 1).

        Every rank gets the same number of windows, so that all ranks run the same number of forward passes.
        """
        ranks = self.ranks
        return windows[: len(windows) // ranks.size * ranks.size][ranks.rank :: ranks.size]


ALONE = RankLayout("single", None)
"""Layout of a worker that consists of a single process."""


def current_layout(settings: DictConfig) -> RankLayout:
    """Return the layout of this process. All processes started by torchrun must call this with equal settings.

    Raises UserError if the device is not available, or if processes would share a GPU.
    """
    kind, device = settings.island.kind, pick_device(settings.inner.device, LOCAL_RANK)
    if kind == "single":
        return RankLayout(kind, None)
    if device.type == "cuda":
        refuse_shared_devices(local_world_size())
        torch.cuda.set_device(device)
    rank_grid = torch.arange(dist.get_world_size()).view(settings.workers, -1)
    return RankLayout(kind, device_mesh(rank_grid, device.type, group_timeout(settings)))


def device_mesh(rank_grid: Tensor, device_type: str, timeout: timedelta) -> DeviceMesh:
    """Create the device mesh for a grid of ranks, int64 of shape (islands, ranks). Its groups have the given timeout.

    `init_device_mesh` is not used, because it sets a timeout of 30 minutes.
    """
    groups: list[Any] = [
        dist.new_subgroups_by_enumeration(ranks.tolist(), timeout=timeout)[0] for ranks in (rank_grid.T, rank_grid)
    ]
    return DeviceMesh.from_group(groups, device_type, rank_grid, mesh_dim_names=("islands", "ranks"))


def mesh_group(mesh: DeviceMesh, dim: str | None) -> dist.ProcessGroup:
    """Return the process group, including this process, along one dimension of a mesh.

    Raises UserError if `dim` does not select one dimension of the mesh.
    """
    names = mesh.mesh_dim_names or ()
    if dim not in names and (dim is not None or mesh.ndim > 1):
        dims = ", ".join(names) or "none (name them with mesh_dim_names=)"
        raise UserError(f"dim={dim!r} is not a dimension of the mesh, whose dimensions are: {dims}")
    return mesh.get_group(dim)


def group_timeout(settings: DictConfig) -> timedelta:
    """Return the timeout between the ranks of an island. In a swarm, it is at least the timeout of a state transfer."""
    timeout_s = max(MIN_TIMEOUT_S, 2 * settings.round_timeout_s)
    if settings.workers_as != "ranks":
        from outerloop.swarm.timeouts import STATE_S  # imports hivemind, which other runs do not need

        timeout_s = max(timeout_s, STATE_S)
    return timedelta(seconds=timeout_s)


def local_world_size() -> int:
    """Return the number of processes that torchrun started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ["WORLD_SIZE"])


def refuse_shared_devices(ranks: int) -> None:
    """Raise UserError if some of the ranks would share a GPU, because NCCL does not support this."""
    if ranks > (devices := torch.cuda.device_count()):
        raise UserError(
            f"{ranks} ranks run on a machine with {devices} CUDA devices, and each rank needs a separate device:"
            f" pass --nproc-per-node {devices}, or inner.device=cpu"
        )


def island_and_rank(rank: int, *, size: int, workers: int) -> tuple[int, int]:
    """Return the island of a process, and its rank in the island, as in `current_layout`.

    `rank`: rank among all `size` processes. `workers`: number of islands.
    """
    return divmod(rank, size // workers)


def process_group_backend(settings: DictConfig) -> str:
    """Return the backend of the process group: gloo, plus NCCL for CUDA tensors if an island may have several ranks."""
    on_cuda = pick_device(settings.inner.device, LOCAL_RANK).type == "cuda"
    return "cpu:gloo,cuda:nccl" if on_cuda and settings.island.kind != "single" else "gloo"


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard the model in place with `fully_shard` and return it.

    Each layer is one parameter group, and all remaining parameters form another group.
    """
    from torch.distributed.fsdp import fully_shard  # imported only here, because it takes a second

    for layer in layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def layers(module: nn.Module) -> Iterator[Any]:
    """Yield the members of each ModuleList that is not nested in another ModuleList."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from layers(child)
