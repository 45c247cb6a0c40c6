"""Train two peers with SparseLoCo in a plain PyTorch loop. The outer loop takes four additions.

Run: `python examples/own_loop.py`. Then, in a second terminal, `python examples/own_loop.py ADDRESS` with the address
printed by the first program. See: six rounds, each of which sends 4.7 KB instead of 428 KB in float32. At the end,
both programs print the same hash of the agreed weights.
"""

import random
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import outerloop

STEPS, SYNC_EVERY = 180, 30
ADDRESS = sys.argv[1:]  # empty: this is the first peer
SHARE = len(ADDRESS)  # 0 for the first peer, 1 for the second

# Windows of 16 bytes from the source of Python's `random`, plus the next byte as the target. Each peer takes one half.
text = torch.tensor(list(Path(random.__file__).read_bytes()))
windows = text.unfold(0, 17, 1)[SHARE::2]
torch.set_num_threads(1)  # two peers share the cores of this machine
torch.manual_seed(0)  # equal initial weights save a download; otherwise all peers load the first peer's weights
model = nn.Sequential(nn.Embedding(256, 32), nn.Flatten(), nn.Linear(16 * 32, 128), nn.ReLU(), nn.Linear(128, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def print_round(report: outerloop.RoundReport) -> None:
    outcome = report.failed or f"{len(report.peers)} peers"
    print(f"{report.round}: sent {report.payload_bytes:,} bytes, {outcome}, loss {loss.item():.3f}")


with outerloop.from_recipe(
    "sparseloco",
    model,
    peers=2,
    sync_every=SYNC_EVERY,
    steps=STEPS,
    initial_peers=ADDRESS,
    run_dir=f"runs/own-loop-{SHARE}",
) as outer:  # waits until both peers have joined
    outerloop.attach(optimizer, outer, on_round=print_round)  # every optimizer.step() counts as an inner step
    while outer.inner_step < STEPS:  # not a count of your own: a peer that missed rounds skips their steps
        batch = windows[torch.randint(len(windows), (64,))]
        loss = cross_entropy(model(batch[:, :-1]), batch[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"hash of the agreed weights {outer.slow_hash:016x}")
