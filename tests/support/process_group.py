"""Processes of one torch.distributed group over gloo, as torchrun would start them."""

import multiprocessing
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.multiprocessing as processes
from torch import distributed as dist

LIMIT_S = 120
"""Of one thing that the processes do together, a start included."""


class Read(NamedTuple):
    """What a rank makes of a round, and whom it refuses."""

    rank: int
    refused: dict


def live(rank, size, work, folder):
    """One process of a group that meets in a file; what `work(rank)` returns goes to another one."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size, timeout=limit)
    try:
        torch.save(work(rank), folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def preload():
    """Let processes be forked from one that has imported what takes long. Call this before each start."""
    multiprocessing.set_forkserver_preload(["tests.support.preloaded"])


@contextmanager
def started(size, work, folder):
    """`size` processes on their way, forked from one that has imported what takes long; none is left afterwards."""
    preload()
    group = processes.start_processes(live, (size, work, folder), nprocs=size, join=False, start_method="forkserver")
    try:
        yield group
    finally:
        for process in group.processes:
            process.kill()
            process.join()


def results(group, folder):
    """What `work(rank)` has returned in each of the processes. Raises what one of them failed with."""
    while not group.join():
        pass
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(len(group.processes))]


def together(size, work, folder):
    """What `work(rank)` returns in each of `size` processes."""
    with started(size, work, folder) as group:
        return results(group, folder)
