"""A training script of somebody who has never heard of outer loops: a little GPT on bytes, AdamW, no more."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(c / self.heads)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width=32, layers=2, heads=2, context=32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def train(
    text,
    *,
    steps,
    seed=0,
    shard=0,
    accumulate=1,
    add=lambda model, optimizer: None,
    optimizer_of=adamw,
    run=lambda x: x,
):
    """The losses and the model. `add`: where somebody adds lines; `run`: what the model is called through."""
    torch.manual_seed(seed)
    model = GPT()
    optimizer, forward = optimizer_of(model), run(model)
    add(model, optimizer)
    torch.manual_seed(seed + 1 + shard)
    data, losses = torch.tensor(list(text)), []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulate):
            starts = torch.randint(len(data) - 33, (8,))
            windows = torch.stack([data[i : i + 33] for i in starts])
            loss = F.cross_entropy(forward(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
            (loss / accumulate).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model
