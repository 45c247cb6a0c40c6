"""Replicas that differ (gossip): their mean, which is the run's one model, and how far apart they are."""

from __future__ import annotations

import torch

from outerloop import wire
from outerloop.aggregate.mean import total
from outerloop.compress.identity import Identity
from outerloop.loop import OuterLoop
from outerloop.payload import Payload, schema_of
from outerloop.portable import divided
from outerloop.ranks import Ranks
from outerloop.types import RoundFailed, Tensors

AS_THEY_ARE = Payload(Identity(), seed=0)
ALONE = Ranks(None)


@torch.no_grad()
def mean_and_spread(outer: OuterLoop, lanes: Ranks = ALONE) -> tuple[Tensors, float, int]:
    """The mean of all peers' slow weights, their spread, how many peers. All must call it. Raises RoundFailed.

    Spread: the root mean square, over all weights, of the standard deviation between peers.

    Args:
        lanes: the ranks of this island, where each of them holds other weights of it: the mean is of this one's, the
            spread of all.
    """
    schema = schema_of(outer.slow)
    header = wire.Header(outer.inner_step, 0, 0, wire.schema_hash(schema), outer.slow_hash, peer=outer.exchange.peer)
    blob = wire.pack(header, {name: {"value": x} for name, x in outer.slow.items()})
    met = sorted(outer.meet(blob), key=lambda contribution: contribution.peer)
    mean, variance = outer.island.compute(mean_and_variance, [one.blob for one in met], outer.slow)
    variance, values = lanes.sum([variance, sum(x.numel() for x in mean.values())])
    return mean, (variance / values) ** 0.5, len(met)


@torch.no_grad()
def mean_and_variance(blobs: list[bytes], like: Tensors) -> tuple[Tensors, float]:
    """Of all peers' weights: the mean, and the sum over weights of the variance between peers. Raises RoundFailed."""
    try:
        all_slow = [weights_of(blob, like) for blob in blobs]
    except wire.BadMessage as bad:
        raise RoundFailed(f"weights that do not fit: {bad}") from bad
    mean, variance = {}, 0.0
    for name in like:
        each = [slow[name] for slow in all_slow]
        mean[name] = divided(total(each), len(each))
        variance += float((torch.stack(each) - mean[name]).square().mean(0).sum())
    return mean, variance


def weights_of(blob: bytes, like: Tensors) -> Tensors:
    """One peer's weights, finite and of the shapes of `like`. Raises BadMessage."""
    message = wire.unpack(blob, schema_of(like))
    return {name: AS_THEY_ARE.decode(message, name, x) for name, x in like.items()}
