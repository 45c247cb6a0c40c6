"""Average replicas that differ (gossip): the mean of their slow weights, which is the run's one model.

Over the peers p whose weights fit, with d_p = ‖φ_p − φ‖ their distance from the weights of this peer:

    φ̄ = mean_p φ_p            left out: other shapes, not finite, or d_p > 5 · lower median of the others' d, > 2⁶⁰

One peer alone would set the median of fewer than three, so that there only the last bound holds. Each peer decides this
for itself, by what it has fetched itself; its own weights always count. Workers that wait for each other (threads, or
processes of one program) leave out only what does not fit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from outerloop import wire
from outerloop.aggregate.mean import total
from outerloop.aggregate.norm_screen import LONGEST
from outerloop.compress.identity import Identity
from outerloop.loop import OuterLoop
from outerloop.payload import Payload, schema_of
from outerloop.portable import divided
from outerloop.ranks import Ranks
from outerloop.types import Contribution, Refusals, Tensors

AS_THEY_ARE = Payload(Identity(), seed=0)
ALONE = Ranks(None)
FAR = 5.0
"""Times the median distance. Replicas of a run are about equally far from each other; one that met few partners is
farther, but shares a start and most of the data's direction."""
FEWEST = 3
"""Others whose distances have a median that none of them sets alone."""


@dataclass(frozen=True)
class Average:
    """The mean of the replicas of `peers`, their spread, and why the others' weights were left out.

    Spread: the root mean square, over all weights, of the standard deviation between peers.
    """

    mean: Tensors
    spread: float
    peers: tuple[str, ...]
    refused: Refusals


@torch.no_grad()
def average(outer: OuterLoop, lanes: Ranks = ALONE) -> Average:
    """Return the average of all peers' slow weights that fit. All peers must call it. Raises RoundFailed.

    Args:
        lanes: the ranks of this island, where each of them holds other weights of it: the mean is of this one's, the
            spread and what is left out of all.
    """
    schema, own = schema_of(outer.slow), outer.exchange.peer
    header = wire.Header(outer.inner_step, 0, 0, wire.schema_hash(schema), outer.slow_hash, peer=own)
    blob = wire.pack(header, {name: {"value": x} for name, x in outer.slow.items()})
    met = [one for one in outer.meet(blob) if one.peer != own]
    others, unfit = outer.island.compute(read, met, outer.slow)
    names = sorted(one.peer for one in met)
    apart = outer.island.compute(squared_distances, others, outer.slow)
    lacking = lanes.sum([float(peer in unfit) for peer in names])
    squares = lanes.sum([apart.get(peer, 0.0) for peer in names])
    refused = {
        peer: unfit.get(peer, f"{peer}: its weights do not fit in another lane")
        for peer, count in zip(names, lacking, strict=True)
        if count
    }
    fit = {peer: math.sqrt(square) for peer, square in zip(names, squares, strict=True) if peer not in refused}
    refused |= {} if outer.exchange.waits_for_all else too_far(fit)
    kept = {own: outer.slow} | {peer: others[peer] for peer in fit if peer not in refused}
    peers = tuple(sorted(kept))
    mean, variance = outer.island.compute(mean_and_variance, [kept[peer] for peer in peers], outer.slow)
    variance, values = lanes.sum([variance, sum(x.numel() for x in mean.values())])
    return Average(mean, (variance / values) ** 0.5, peers, refused)


def read(met: Sequence[Contribution], like: Tensors) -> tuple[dict[str, Tensors], dict[str, str]]:
    """Return the weights of each peer whose message fits, and why the others' do not."""
    weights, unfit = {}, {}
    for one in met:
        try:
            weights[one.peer] = weights_of(one.blob, like)
        except wire.BadMessage as bad:
            unfit[one.peer] = f"{one.peer}: its weights do not fit: {bad}"
    return weights, unfit


@torch.no_grad()
def squared_distances(others: Mapping[str, Tensors], own: Tensors) -> dict[str, float]:
    """Return d_p² of each peer, over the weights of this lane; infinite where float64 does not hold it."""
    return {
        peer: sum(float((x.double() - own[name].double()).square().sum()) for name, x in weights.items())
        for peer, weights in others.items()
    }


def too_far(distances: Mapping[str, float]) -> dict[str, str]:
    """Return those of the other peers whose weights are too far from the own ones, and why."""
    usual = statistics.median_low(distances.values()) if len(distances) >= FEWEST else math.inf
    return {
        peer: f"{peer}: its weights are {d:.3g} from those here, more than {FAR:g} times the median {usual:.3g}"
        for peer, d in distances.items()
        if not d <= min(LONGEST, FAR * usual)
    }


@torch.no_grad()
def mean_and_variance(replicas: Sequence[Tensors], like: Tensors) -> tuple[Tensors, float]:
    """Return the mean of replicas, and the sum over weights of the variance between them."""
    mean, variance = {}, 0.0
    for name in like:
        each = [slow[name] for slow in replicas]
        mean[name] = divided(total(each), len(each))
        variance += float((torch.stack(each) - mean[name]).square().mean(0).sum())
    return mean, variance


def weights_of(blob: bytes | memoryview, like: Tensors) -> Tensors:
    """Return one peer's weights, finite and of the shapes of `like`. Raises BadMessage."""
    message = wire.unpack(blob, schema_of(like))
    return {name: AS_THEY_ARE.decode(message, name, x) for name, x in like.items()}
