"""Train two peers with accelerate. The outer loop takes the objects that `prepare` returns as they are.

Run: `python examples/accelerate_loop.py`. Then, in a second terminal, `python examples/accelerate_loop.py ADDRESS` with
the address printed by the first program. For several processes per peer: `torchrun --standalone --nproc-per-node 2
examples/accelerate_loop.py` and the same with ADDRESS or, on GPUs, also `accelerate launch --num_processes 2 ...`.
See: a round after every 20 optimizer steps, each of which accumulates the gradients of two batches. At the end, both
programs print the same hash of the agreed weights.
"""

import sys
from itertools import chain, repeat

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outerloop

STEPS = 60  # optimizer steps
ADDRESS = sys.argv[1:]  # empty: this is the first peer
SHARE = len(ADDRESS)

cpu = not torch.cuda.is_available()  # on a CPU, the processes of torchrun form a group only with cpu=True
accelerator = Accelerator(cpu=cpu, gradient_accumulation_steps=2)
torch.set_num_threads(1)  # two peers share the cores of this machine
torch.manual_seed(0)  # equal initial weights save a download; otherwise all peers load the first peer's weights
model, x = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)), torch.randn(4096, 8)
data = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=32, sampler=range(SHARE, 4096, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)


def print_round(report: outerloop.RoundReport) -> None:
    accelerator.print(f"{report.round}: {len(report.peers)} peers, loss {loss.item():.4f}")


with outerloop.from_recipe(
    "diloco",
    model,
    "method.optimizer.momentum=0.6",  # the default, 0.9, is for rounds of 100 steps or more
    peers=2,
    sync_every=20,
    steps=STEPS,
    initial_peers=ADDRESS,
    run_dir=f"runs/accelerate-{SHARE}",
) as outer:  # waits until both peers have joined
    outerloop.attach(optimizer, outer, on_round=print_round)  # counts optimizer steps, not batches
    batches = chain.from_iterable(repeat(data))  # one epoch after the other
    while outer.inner_step < STEPS:
        x, y = next(batches)
        with accelerator.accumulate(model):
            loss = ((model(x) - y) ** 2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
accelerator.print(f"hash of the agreed weights {outer.slow_hash:016x}")
