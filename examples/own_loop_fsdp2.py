"""Train on two islands of FSDP2 ranks. Each island holds one sharded model; islands exchange updates every 15 steps.

Run: `torchrun --nproc-per-node 4 examples/own_loop_fsdp2.py` (4 CPU processes or GPUs: 2 islands of 2 ranks). See: the
memory and loss of each rank; the hash of its shards, which equals that of the rank with the same shards on the other
island; and one checkpoint per island.
"""

import random
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import outerloop

STEPS, SYNC_EVERY, ISLANDS = 60, 15, 2

device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group()
mesh = init_device_mesh(device, (ISLANDS, dist.get_world_size() // ISLANDS), mesh_dim_names=("islands", "ranks"))
island, rank = mesh.get_coordinate()

torch.manual_seed(0)
blocks = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(3)]
model = nn.Sequential(nn.Embedding(256, 32), nn.Flatten(), *blocks, nn.Linear(512, 256)).to(device)
for block in blocks:
    fully_shard(block, mesh=mesh["ranks"])
fully_shard(model, mesh=mesh["ranks"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # created after fully_shard, which replaces parameters

# Windows of 16 bytes from the source of Python's `random`, plus the next byte as the target. Each rank has a share.
text = torch.tensor(list(Path(random.__file__).read_bytes()), device=device)
windows = text.unfold(0, 17, 1)[dist.get_rank() :: dist.get_world_size()]

# Every rank is a lane: it exchanges messages with the rank that holds the same shards on the other island.
with outerloop.from_recipe("sparseloco", model, mesh=mesh, dim="islands", sync_every=SYNC_EVERY, steps=STEPS) as outer:
    outerloop.attach(optimizer, outer)
    print(f"island {island} rank {rank}: {outerloop.memory.estimate(outer, optimizer)}")
    while outer.inner_step < STEPS:
        batch = windows[torch.randint(len(windows), (32,), device=device)]
        loss = cross_entropy(model(batch[:, :-1]), batch[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"island {island} rank {rank}: loss {loss.item():.3f}, hash of the agreed shards {outer.slow_hash:016x}")
    outerloop.resharding.save(f"runs/fsdp2/island-{island}", optimizer, outer)  # can be loaded on any number of ranks
dist.destroy_process_group()
