"""Replicas that differ (gossip): their mean, which is the run's one model, and how far apart they are."""

from __future__ import annotations

import torch

from outerloop import wire
from outerloop.loop import OuterLoop
from outerloop.payload import schema_of
from outerloop.types import Tensors


@torch.no_grad()
def mean_and_spread(outer: OuterLoop) -> tuple[Tensors, float]:
    """The mean of all peers' slow weights, and their spread. All peers must call it. Raises RoundFailed.

    Spread: the root mean square, over all weights, of the standard deviation between peers.
    """
    schema = schema_of(outer.slow)
    header = wire.Header(outer.inner_step, 0, 0, wire.schema_hash(schema), outer.slow_hash, peer=outer.exchange.peer)
    blob = wire.pack(header, {name: {"value": x} for name, x in outer.slow.items()})
    met = sorted(outer.meet(blob), key=lambda contribution: contribution.peer)
    parts = [wire.unpack(contribution.blob, schema).parts for contribution in met]
    mean, variance = {}, 0.0
    for name, x in outer.slow.items():
        stacked = torch.stack([p[name]["value"].to(x.device) for p in parts])
        mean[name] = stacked.mean(0)
        variance += float(stacked.var(0, unbiased=False).sum())
    return mean, (variance / sum(x.numel() for x in mean.values())) ** 0.5
