"""The mean over senders: of values on both routes alike, and of DCT coefficients as in the code of DeMo's authors."""

import math
import statistics

import numpy as np
import pytest
import torch

from outerloop.aggregate.senders import Senders
from outerloop.compress.dct import Dct
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.config import build, load
from outerloop.core.codec import UpdateCodec
from tests.support import toy

# --- values ---


def test_a_zero_counts_as_not_sent():
    """What the docstring says: .4 and 0 give .4. Dense payloads without zeros give the mean."""
    assert Senders()([torch.tensor([0.4]), torch.tensor([0.0])], [1, 1], []).tolist() == torch.tensor([0.4]).tolist()
    a, b = torch.tensor([0.5, -3.0]), torch.tensor([1.5, 1.0])
    assert Senders()([a, b], [1, 1], []).tolist() == [1.0, -1.0]


@pytest.mark.parametrize("fused", [True, False])
def test_a_zero_that_top_k_kept_counts_as_not_sent_on_both_routes(fused):
    """Two of four are kept. Of (0, 0, 0, .25) these are positions 3 and 0: a zero is sent to where the other has .5."""
    deltas = [[0.5, 0.0, 0.0, 0.125], [0.0, 0.0, 0.0, 0.25]]

    def work(exchange):
        net = torch.nn.Linear(4, 1, bias=False)
        torch.nn.init.zeros_(net.weight)
        codec = TopK(chunk=4, k=2, values=Identity(), index=Rice())
        loop = toy.outer(net, exchange, h=1, compress=codec, aggregate=Senders())
        loop.pipeline.fused.fits = fused
        net.weight.data -= torch.tensor([deltas[exchange.rank]])
        loop.after_inner_step(1)
        assert bool(loop.pipeline.split(loop.slow)[0]) == fused
        return loop.slow["weight"].tolist()

    assert toy.run_workers(2, work) == [[[-0.5, 0.0, 0.0, -0.1875]]] * 2


# --- coefficients ---

COUNT, LENGTH, CHUNK, K, BETA = 40, 8, 16, 3, 0.999
"""Five transforms of 8; of their coefficients 3 of 16, and 2 of the last 8."""
DEMO = ["recipe=demo", "compress.below=2", f"compress.large.chunk={LENGTH}", f"compress.large.of.chunk={CHUNK}"]


def gradient(worker, number):
    """What all have in common, and noise of one's own; that of worker 2 is ten times as long."""
    common, own = np.random.default_rng(number), np.random.default_rng(100 + 10 * number + worker)
    long = 10.0 if worker == 2 else 1.0
    return (long * (common.normal(size=COUNT) + own.normal(size=COUNT))).astype(np.float32)


def dct_matrix():
    """Rows are the orthonormal DCT-II's: s_k cos(π (2n + 1) k / 2L)."""
    k, n = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None]
    scale = np.where(k, math.sqrt(2 / LENGTH), math.sqrt(1 / LENGTH))
    return scale * np.cos(np.pi * (2 * n + 1) * k / (2 * LENGTH))


def kept(coefficients):
    """The largest of each 16, and their share of the last 8, in bfloat16; 0 elsewhere."""
    out = np.zeros_like(coefficients)
    for first in range(0, COUNT, CHUNK):
        chunk = coefficients[first : first + CHUNK]
        best = np.argsort(-np.abs(chunk), kind="stable")[: math.ceil(K * len(chunk) / CHUNK)]
        out[first + best] = torch.tensor(chunk[best]).bfloat16().double().numpy()
    return out


def mean_of(q):
    return q.sum(0) / len(q)


def senders_of(q):
    return q.sum(0) / np.maximum(1, (q != 0).sum(0))


def clipped_of(q):
    norms = [np.linalg.norm(one) for one in q]
    return senders_of(np.stack([one * min(1, statistics.median(norms) / n) for one, n in zip(q, norms, strict=True)]))


AGGREGATES = {"mean": mean_of, "senders": senders_of, "median_clip": clipped_of}


def by_hand(aggregate, rounds=3):
    """What moves the weights in each round: x = g + β e; q = top-k(DCT x); e ← x − IDCT q; IDCT(aggregate of all q)."""
    d, held, out = dct_matrix(), np.zeros((3, COUNT)), []
    for number in range(rounds):
        x = np.stack([gradient(worker, number) for worker in range(3)]) + BETA * held
        q = np.stack([kept((one.reshape(-1, LENGTH) @ d.T).ravel()) for one in x])
        held = x - (q.reshape(3, -1, LENGTH) @ d).reshape(3, COUNT)
        out.append((aggregate(q).reshape(-1, LENGTH) @ d).ravel())
    return np.stack(out)


def by_the_recipe(name, rounds=3):
    """What recipe=demo hands to its method in each round, at worker 0, and how many values each worker sent."""
    settings = load.load([*DEMO, f"compress.large.of.k={K}", f"aggregate={name}"])

    def work(exchange):
        net = torch.nn.Linear(COUNT, 1, bias=False)
        torch.nn.init.zeros_(net.weight)
        loop = build.make_outer_loop(settings, net, exchange, rounds=None)
        update, land, means, counts = loop.method.update, loop.pipeline.land, [], []

        def told_update(slow, mean, own):
            means.append(mean["weight"].numpy().ravel().copy())
            update(slow, mean, own)

        def told_land(combined, offered, *rest, **how):
            [sent] = loop.pipeline.sent(combined, offered)
            counts.extend(int((x != 0).sum()) for x in sent)
            return land(combined, offered, *rest, **how)

        loop.method.update, loop.pipeline.land = told_update, told_land
        for number in range(rounds):
            net.weight.grad = torch.tensor(gradient(exchange.rank, number))[None]
            assert not any(report.failed for report in loop.after_inner_step(1))
        return np.stack(means), counts, loop.slow_hash

    results = toy.run_workers(3, work)
    assert len({slow for _, _, slow in results}) == 1
    return results[0][0], results[0][1]


@pytest.mark.parametrize("name", AGGREGATES)
def test_demo_aggregates_coefficients(name):
    """From scratch in numpy, three rounds of three workers; norms and agreement are of the same coefficients."""
    expected, (found, counts) = by_hand(AGGREGATES[name]), by_the_recipe(name)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    assert counts == [3 + 3 + 2] * 9
    other = by_hand(senders_of if name == "mean" else mean_of)
    assert np.abs(expected - other).max() > 0.1 * np.abs(expected).max()


def test_values_of_an_aggregate():
    """Coefficients are transformed back; what is not finite stays so, for checks to see; other codecs send values."""
    payload = UpdateCodec(Dct(chunk=2, of=Identity()), seed=0)
    assert payload.values(0, "w", torch.tensor([1.0, 1.0])).tolist() == pytest.approx([math.sqrt(2), 0.0], abs=1e-6)
    assert payload.values(0, "w", torch.tensor([math.inf, 1.0])).tolist() == [math.inf, 1.0]
    assert UpdateCodec(Identity(), seed=0).values(0, "w", torch.tensor([1.0, 1.0])).tolist() == [1.0, 1.0]
