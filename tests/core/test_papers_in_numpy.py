"""Five papers a second time, in numpy and without the library: what four workers hold after every round.

Worker m's inner step is θ ← θ − c (θ − t_m), value by value in float32, with targets t_m of its own, the same on every
machine. `exact` compares bit for bit with float32 arithmetic in which every product and every sum is rounded on its
own; `close` compares with float64.
test_golden_trajectories.py holds the other settings (heavy ball, consensus outside, no merging, eager), on scalars.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from outerloop.aggregate.senders import Senders
from outerloop.compress.by_size import BySize
from outerloop.compress.cast import Cast
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.compress.uniform import Uniform
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.loco import LoCo
from outerloop.methods.noloco import NoLoCo
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from outerloop.types import Round
from tests.support import toy

F = np.float32
SIZES = [150, 128, 20]
"""A ragged tensor, one of two whole chunks of 64, and a small one."""
WORKERS, H, ROUNDS = 4, 4, 6
PACE = F(0.0625)


def values(seed):
    """One float32 array a tensor."""
    draw = np.random.default_rng(seed)
    return [draw.standard_normal(size).astype(F) for size in SIZES]


START = values(0)
TARGETS = [values(1 + worker) for worker in range(WORKERS)]


class Net(nn.Module):
    """Three tensors, each a layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.ParameterList([nn.Parameter(torch.from_numpy(x.copy()))]) for x in START])


def inner(fast, worker):
    """θ ← θ − c (θ − t), three roundings; exact where `fast` is float32."""
    return [x - (x - t.astype(x.dtype)) * x.dtype.type(PACE) for x, t in zip(fast, TARGETS[worker], strict=True)]


def arrays(tensors):
    return [x.detach().numpy().copy() for x in tensors]


def run(exchange, **parts):
    """By inner step: fast, slow, and what the feedback holds."""
    net = Net()
    loop = toy.outer(net, exchange, **({"schedule": EveryH(sync_every=H)} | parts))
    held = getattr(loop.feedback, "residual", None) or getattr(loop.feedback, "error", None)
    seen = []
    for _ in range(ROUNDS * loop.schedule.sync_every + loop.schedule.delay):
        for p, t in zip(net.parameters(), TARGETS[exchange.rank], strict=True):
            p.data.sub_((p.data - torch.from_numpy(t)) * float(PACE))
        assert not any(report.failed for report in loop.after_inner_step(1))
        kept = [held.get(name) for name in loop.slow] if held else []
        seen.append((arrays(net.parameters()), arrays(loop.slow.values()), arrays(x for x in kept if x is not None)))
    return seen


def exact(got, expected):
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        assert e.dtype == F and np.array_equal(g, e), np.abs(g - e).max()


def close(got, expected, limit):
    for g, e in zip(got, expected, strict=True):
        assert np.abs(g - e).max() <= limit


# --- DiLoCo, arXiv 2311.08105 ---


def diloco(dtype, lr=0.7, mu=0.9):
    """Slow weights after every round: b ← μ b + mean Δ;  φ ← φ − η (mean Δ + μ b)."""
    lr, mu = dtype(lr), dtype(mu)
    slow, b = [x.astype(dtype) for x in START], [np.zeros(size, dtype) for size in SIZES]
    for _ in range(ROUNDS):
        mean = [np.zeros(size, dtype) for size in SIZES]
        for worker in range(WORKERS):
            fast = slow
            for _ in range(H):
                fast = inner(fast, worker)
            mean = [m + (x - y) for m, x, y in zip(mean, slow, fast, strict=True)]
        mean = [m / dtype(WORKERS) for m in mean]
        b = [old * mu + m for old, m in zip(b, mean, strict=True)]
        slow = [x - (m + new * mu) * lr for x, m, new in zip(slow, mean, b, strict=True)]
        yield slow


def test_diloco():
    results = toy.run_workers(WORKERS, lambda e: run(e, method=toy.sgd(0.7, 0.9, True)))
    for number, slow in enumerate(diloco(np.float64)):
        for seen in results:
            close(seen[(number + 1) * H - 1][1], slow, 1e-6)
            exact(seen[(number + 1) * H - 1][0], seen[(number + 1) * H - 1][1])


def test_diloco_bit_for_bit():
    results = toy.run_workers(WORKERS, lambda e: run(e, method=toy.sgd(0.7, 0.9, True)))
    for number, slow in enumerate(diloco(F)):
        for seen in results:
            exact(seen[(number + 1) * H - 1][1], slow)


# --- SparseLoCo, arXiv 2508.15706 ---


def bfloat16(x):
    """float32 -> the nearest bfloat16, ties to even, as float32."""
    bits = np.ascontiguousarray(x, F).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(F)


def two_bits(x):
    """A sign and one of two magnitudes: the means of what is above the mean magnitude, and of the rest."""
    size = np.abs(x.astype(np.float64))
    high = size > size.mean()
    low = bfloat16(F(size[~high].mean()))
    level = np.where(high, bfloat16(F(size[high].mean())) if high.any() else low, low)
    return np.where(x < 0, -level, level).astype(F)


def kept(x, chunk=64, k=6):
    """Top-k of every chunk, ties to the first; a shorter last chunk keeps its share, rounded up. Small: bfloat16."""
    if len(x) < chunk:
        return bfloat16(x)
    out = np.zeros_like(x)
    for start in range(0, len(x), chunk):
        part = x[start : start + chunk]
        most = -(-k * len(part) // chunk)
        at = np.sort(np.argsort(-np.abs(part), kind="stable")[:most])
        out[start + at] = two_bits(part[at])
    return out


@pytest.mark.parametrize("beta", [0.95, 0.5])
def test_sparseloco(beta):
    """x = Δ + β e;  e ← x − x̂;  φ ← φ − Σ x̂ / (how many sent a coordinate). Supports, values, residual, slow, fast."""
    codec = BySize(
        below=64, small=Cast(dtype="bfloat16"), large=TopK(chunk=64, k=6, values=TwoBit(chunk=None), index=Rice())
    )
    parts = {"compress": codec, "aggregate": Senders()}
    results = toy.run_workers(WORKERS, lambda e: run(e, feedback=ErrorFeedback(beta=beta), **parts))
    slow, held = START, [[np.zeros(size, F) for size in SIZES] for _ in range(WORKERS)]
    for number in range(ROUNDS):
        total, senders = [np.zeros(size, F) for size in SIZES], [np.zeros(size, F) for size in SIZES]
        for worker in range(WORKERS):
            fast = slow
            for _ in range(H):
                fast = inner(fast, worker)
            for i, (phi, theta) in enumerate(zip(slow, fast, strict=True)):
                x = (phi - theta) + held[worker][i] * F(beta)
                sent = kept(x)
                held[worker][i] = x - sent
                total[i], senders[i] = total[i] + sent, senders[i] + (sent != 0)
        slow = [phi - t / np.maximum(n, F(1)) for phi, t, n in zip(slow, total, senders, strict=True)]
        for worker, seen in enumerate(results):
            fast, got, residual = seen[(number + 1) * H - 1]
            exact(got, slow)
            exact(fast, slow)
            exact(residual, held[worker])


# --- NoLoCo, arXiv 2506.10911 ---


def test_noloco():
    """δ ← α δ + β mean(θ − φ) + γ (mean φ − φ), φ ← φ + δ, γ = β; over all workers heavy ball, whatever the pairs."""
    alpha, beta = 0.5, 0.7
    method = partial(NoLoCo, alpha=alpha, beta=beta, gamma=None, consensus="inside")

    def work(pairs):
        return run(pairs, method=method()), [pairs.partners(Round(number)) for number in range(ROUNDS)]

    results = toy.run_workers(WORKERS, work, partial(InProcessGossip, group=2, seed=3))
    slow = [[x.astype(np.float64) for x in START] for _ in range(WORKERS)]
    delta = [[np.zeros(size) for size in SIZES] for _ in range(WORKERS)]
    center, velocity = np.concatenate(START).astype(np.float64), 0.0
    for number in range(ROUNDS):
        fast = slow
        for _ in range(H):
            fast = [inner(x, worker) for worker, x in enumerate(fast)]
        everywhere = [np.mean([np.concatenate(x) for x in what], 0) for what in (fast, slow)]
        velocity = alpha * velocity + beta * (everywhere[0] - everywhere[1])
        center, before, slow = center + velocity, slow, [[] for _ in range(WORKERS)]
        for worker in range(WORKERS):
            pair = results[worker][1][number]
            assert worker in pair and len(pair) == 2
            for i in range(len(SIZES)):
                progress = np.mean([fast[j][i] - before[j][i] for j in pair], 0)
                towards = np.mean([before[j][i] for j in pair], 0) - before[worker][i]
                delta[worker][i] = alpha * delta[worker][i] + beta * progress + beta * towards
                slow[worker].append(before[worker][i] + delta[worker][i])
        seen = [run[(number + 1) * H - 1] for run, _ in results]
        for worker in range(WORKERS):
            close(seen[worker][1], slow[worker], 2e-6)
        close([np.mean([np.concatenate(got).astype(np.float64) for _, got, _ in seen], 0)], [center], 2e-6)
    assert not np.array_equal(seen[0][1][0], seen[1][1][0])


# --- LoCo, arXiv 2407.04480 ---


def four_bits(x, group=16):
    """round(x / s) s with s = max |x| / 7 of a group, in bfloat16."""
    out = []
    for start in range(0, len(x), group):
        part = x[start : start + group]
        scale = bfloat16(np.abs(part).max() / F(7))
        out.append(np.clip(np.round(part / (scale or F(1))), -7, 7).astype(F) * scale)
    return np.concatenate(out)


def eight_bits(x, block=256):
    """What an error is once it has been stored: round(x / s) s, s = max |x| / 127 of a block."""
    assert len(x) <= block
    scale = np.abs(x).max() / F(127)
    return np.round(x / np.maximum(scale, np.finfo(F).tiny)).astype(F) * scale


@pytest.mark.parametrize("bits", [8, 32])
def test_loco(bits):
    """h = Δ + e;  e ← β e + (1 − β)(h − ĥ), forgotten after every third round;  φ ← φ − mean ĥ.

    β .5, whose products are exact: a processor that fuses product and sum comes to the same bits.
    """
    parts = {"compress": Uniform(bits=4, chunk=16)}
    results = toy.run_workers(WORKERS, lambda e: run(e, feedback=LoCo(beta=0.5, reset_every=3, bits=bits), **parts))
    stored = eight_bits if bits == 8 else lambda x: x
    slow, error = START, [[np.zeros(size, F) for size in SIZES] for _ in range(WORKERS)]
    for number in range(ROUNDS):
        total = [np.zeros(size, F) for size in SIZES]
        for worker in range(WORKERS):
            fast = slow
            for _ in range(H):
                fast = inner(fast, worker)
            for i, (phi, theta) in enumerate(zip(slow, fast, strict=True)):
                h = (phi - theta) + error[worker][i]
                sent = four_bits(h)
                average = (h - sent) * F(0.5) + error[worker][i] * F(0.5)
                error[worker][i] = stored(average * F(number % 3 != 2))
                total[i] = total[i] + sent
        slow = [phi - t / F(WORKERS) for phi, t in zip(slow, total, strict=True)]
        for worker, seen in enumerate(results):
            fast, got, held = seen[(number + 1) * H - 1]
            exact(got, slow)
            exact(fast, slow)
            exact(held, error[worker])


# --- Streaming DiLoCo, arXiv 2501.18512 ---


@pytest.mark.parametrize(("alpha", "delay"), [(0.5, 2), (0.25, 1), (0.5, 0)])
def test_streaming_diloco(alpha, delay):
    """Layers 0 and 2 leave after 3, 9, .. steps, layer 1 after 6, 12, ..: H 6; θ ← α θ + (1 − α) φ `delay` later."""
    h, lr, mu, homes = 6, 0.7, 0.9, [0, 1, 0]
    parts = {"schedule": Streaming(sync_every=h, fragments=2, delay=delay), "merge_local": alpha}
    results = toy.run_workers(WORKERS, lambda e: run(e, method=toy.sgd(lr, mu, True), **parts))
    fast = [[x.astype(np.float64) for x in START] for _ in range(WORKERS)]
    slow, b = [x.astype(np.float64) for x in START], [np.zeros(size) for size in SIZES]
    flying = {}
    for step in range(1, len(results[0]) + 1):
        fast = [inner(x, worker) for worker, x in enumerate(fast)]
        for i, home in enumerate(homes):
            if step % h == (3, 0)[home]:
                flying[i, step + delay] = np.mean([slow[i] - x[i] for x in fast], 0)
            if (i, step) in flying:
                mean = flying.pop((i, step))
                b[i] = mu * b[i] + mean
                slow[i] = slow[i] - lr * (mean + mu * b[i])
                for x in fast:
                    x[i] = alpha * x[i] + (1 - alpha) * slow[i]
        for worker, seen in enumerate(results):
            close(seen[step - 1][0], fast[worker], 2e-6)
            close(seen[step - 1][1], slow, 2e-6)
