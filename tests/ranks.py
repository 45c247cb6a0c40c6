"""Processes of one torch.distributed group over gloo, as torchrun would start them."""

import json

import torch
import torch.multiprocessing as processes
from torch import distributed as dist


def live(rank, size, work, folder):
    """One process of a group that meets in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    (folder / f"{rank}.json").write_text(json.dumps(work(rank)))
    dist.destroy_process_group()


def together(size, work, folder):
    """What `work(rank)` returns in each of `size` processes."""
    processes.spawn(live, (size, work, folder), nprocs=size)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
