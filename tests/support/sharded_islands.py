"""A little net under `fully_shard`: islands of processes, trained with a loop of their own, beside whole replicas."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

EVEN = {"vocab": 32, "width": 16}
"""Shards of 2 ranks are whole chunks of 32 values."""
ODD = {"vocab": 33, "width": 7, "score": True}
"""Uneven shards, and one without any value: the only row of `score` is at the first rank."""
CHUNKS = ["compress.large.chunk=32", "compress.large.k=8", "compress.below=32"]
"""Options of `sparseloco` for so small a net."""


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    """Embedding tied to the head, blocks, a frozen layer, perhaps one parameter of a single row."""

    def __init__(self, *, vocab, width, layers=2, score=False):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.fixed = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.score = nn.Linear(width, 1, bias=False) if score else None
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        self.vocab = vocab

    def forward(self, x):
        h = self.tokens(x)
        for block in self.blocks:
            h = block(h)
        h = h + self.fixed(h)
        return self.head(h) if self.score is None else self.head(h) * self.score(h).sigmoid()


def shard(net, mesh):
    """The net under FSDP2, a group of parameters a block."""
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def loss_of(net, island, step, part):
    """The mean loss of one half of what an island trains on in this step."""
    draw, vocab = torch.Generator().manual_seed(1000 * island + step), getattr(net, "module", net).vocab
    x, y = torch.randint(vocab, (2, 2, 4, 6), generator=draw)
    return nn.functional.cross_entropy(net(x[part]).flatten(0, 1), y[part].flatten())


def train(net, optimizer, *, island, parts, steps, after=lambda step: None):
    """Inner steps on these parts of the island's batches, the mean of their gradients. Returns the last losses."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        for part in parts:
            losses.append(loss_of(net, island, step, part))
            losses[-1].backward()
        for p in net.parameters():
            if p.grad is not None and len(parts) > 1:
                p.grad.div_(len(parts))
        optimizer.step()
        after(step)
    return [loss.item() for loss in losses[-len(parts) :]]
