"""Average replicas that differ (gossip). The mean of their slow weights is the model that this machine exports.

The mean is over the peers p whose weights φ_p are usable. φ are this peer's weights, d_p = ‖φ_p − φ‖ is the distance of
φ_p from them, and r is the usual distance in this peer's own history (aggregate/distance_screen.py):

    φ̄ = φ + mean_p min(1, 4 r / d_p) (φ_p − φ)        left out: other shapes, not finite, d_p > 32 r, d_p > 2⁶⁰

r is known before any peer sends its final weights. So peers, however many, cannot push another peer out of the mean. If
f of n peers lie, they move the mean by at most 4 r f / n. Each peer computes the mean independently, from the weights
that it has fetched itself; its own weights always count in full. Peers that have fetched the same weights and clip no
distance get the same mean. If workers wait for each other (threads, or processes of one program) or clip=none is set,
distances are not limited, and only weights with other shapes or non-finite values are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from outerloop import wire
from outerloop.aggregate.distance_screen import GROWTH, too_far
from outerloop.aggregate.mean import total
from outerloop.aggregate.median_clip import factors_of
from outerloop.compress.identity import Identity
from outerloop.core.codec import UpdateCodec, schema_of
from outerloop.core.outer_loop import OuterLoop
from outerloop.kernels.portable import divide
from outerloop.replica.rank_group import RankGroup
from outerloop.types import Contribution, Refusals, Tensors

AS_THEY_ARE = UpdateCodec(Identity(), seed=0)
"""The codec for weights, which are sent uncompressed."""
ALONE = RankGroup(None)
"""A group that contains this process only."""


@dataclass(frozen=True)
class ReplicaMean:
    """The mean of the replicas of several peers.

    spread: the root mean square, over all weights, of the standard deviation between peers.
    peers: names of the peers whose weights are in the mean.
    refused: peer that was left out -> reason.
    shortened: peer whose distance was clipped -> factor (below 1) that was applied to its distance.
    """

    mean: Tensors
    spread: float
    peers: tuple[str, ...]
    refused: Refusals
    shortened: dict[str, float]


@torch.no_grad()
def average(outer: OuterLoop, lanes: RankGroup = ALONE) -> ReplicaMean:
    """Average the slow weights of all peers whose weights are usable. All peers must call this.

    Raises RoundFailed if the exchange of weights fails.

    Args:
        lanes: the ranks of this island, if each of them holds a different shard. The mean covers this rank's shard; the
            spread and the refusals cover all shards.
    """
    schema, own = schema_of(outer.slow), outer.exchange.peer
    header = wire.Header(outer.inner_step, 0, 0, wire.schema_hash(schema), outer.slow_hash, peer=own)
    blob = wire.pack(header, {name: {"value": x.reshape(-1)} for name, x in outer.slow.items()})
    met = [one for one in outer.all_gather(blob) if one.peer != own]
    others, unfit = outer.island.compute(read, met, outer.slow)
    names = sorted(one.peer for one in met)
    apart = outer.island.compute(squared_distances, others, outer.slow)
    lacking = lanes.all_reduce([float(peer in unfit) for peer in names])
    squares = lanes.all_reduce([apart.get(peer, 0.0) for peer in names])
    refused = {
        peer: unfit.get(peer, f"{peer}: its weights do not fit on another rank")
        for peer, count in zip(names, lacking, strict=True)
        if count
    }
    fit = {peer: math.sqrt(square) for peer, square in zip(names, squares, strict=True) if peer not in refused}
    usual = usual_distance(outer, lanes)
    if not outer.exchange.info.waits_for_all:
        refused |= {peer: f"{peer}: {why}" for peer, why in too_far(fit, usual).items()}
    near = {peer: d for peer, d in fit.items() if peer not in refused}
    factors = dict(zip(near, factors_of(list(near.values()), GROWTH * usual), strict=True))
    near_weights = {peer: others[peer] for peer in near}
    kept = {own: outer.slow} | outer.island.compute(drawn_near, near_weights, outer.slow, factors)
    peers = tuple(sorted(kept))
    mean, variance = outer.island.compute(mean_and_variance, [kept[peer] for peer in peers], outer.slow)
    variance, values = lanes.all_reduce([variance, sum(x.numel() for x in mean.values())])
    shortened = {peer: factor for peer, factor in factors.items() if factor < 1}
    return ReplicaMean(mean, (variance / values) ** 0.5, peers, refused, shortened)


def read(met: Sequence[Contribution], like: Tensors) -> tuple[dict[str, Tensors], dict[str, str]]:
    """Decode other peers' weights. Return peer -> weights, and peer -> reason if its weights do not fit `like`."""
    weights, unfit = {}, {}
    for one in met:
        try:
            weights[one.peer] = weights_of(one.blob, like)
        except wire.InvalidMessage as bad:
            unfit[one.peer] = f"{one.peer}: its weights do not fit: {bad}"
    return weights, unfit


@torch.no_grad()
def squared_distances(others: Mapping[str, Tensors], own: Tensors) -> dict[str, float]:
    """Return each peer's squared L2 distance from `own`, over this rank's shard; infinity if float64 overflows."""
    return {
        peer: sum(float((x.double() - own[name].double()).square().sum()) for name, x in weights.items())
        for peer, weights in others.items()
    }


def usual_distance(outer: OuterLoop, lanes: RankGroup) -> float:
    """Return the usual L2 distance between replicas, over all shards, or infinity if distances are not screened."""
    usual = outer.screen.usual_of_replicas()
    return usual if math.isinf(usual) else math.sqrt(lanes.all_reduce([usual**2])[0])


@torch.no_grad()
def drawn_near(others: Mapping[str, Tensors], own: Tensors, factors: Mapping[str, float]) -> dict[str, Tensors]:
    """Return each peer's weights, with their distance from `own` multiplied by the peer's factor (at most 1)."""
    return {
        peer: {name: torch.lerp(own[name], x.to(own[name].dtype), factors[peer]) for name, x in weights.items()}
        if factors[peer] < 1
        else weights
        for peer, weights in others.items()
    }


@torch.no_grad()
def mean_and_variance(replicas: Sequence[Tensors], like: Tensors) -> tuple[Tensors, float]:
    """Return the mean of the replicas, and the variance between replicas, summed over all weights."""
    mean, variance = {}, 0.0
    for name in like:
        each = [slow[name] for slow in replicas]
        mean[name] = divide(total(each), len(each))
        variance += float((torch.stack(each) - mean[name]).square().mean(0).sum())
    return mean, variance


def weights_of(blob: bytes | memoryview, like: Tensors) -> Tensors:
    """Decode one peer's weights. Raises InvalidMessage unless they are finite and have the shapes of `like`."""
    message = wire.unpack(blob, schema_of(like))
    return {name: AS_THEY_ARE.decode(message, name, x) for name, x in like.items()}
