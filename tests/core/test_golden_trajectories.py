"""Golden trajectories: constant gradients, every weight after every step, against the equations in plain Python floats.

Worker m's loss is c_m times the sum of its two scalar weights, so one inner SGD step is θ ← θ − a c_m. Everything below
is written a second time from the papers' equations, one scalar at a time, and shares no code with the library.
"""

from functools import partial

import pytest
import torch
from torch import nn

from outerloop.compress.identity import Identity
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.feedback.local_error import LocalError
from outerloop.feedback.loco import LoCo
from outerloop.methods.noloco import NoLoCo
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from outerloop.types import Round
from tests.support import toy

START = [1.0, -2.0]
GRADIENTS = [0.5, 1.5, -0.25]
A = 0.125


class Two(nn.Module):
    """Two layers of one scalar weight each."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in START])
        with torch.no_grad():
            for layer, value in zip(self.layers, START, strict=True):
                layer.weight.fill_(value)

    def values(self):
        return [layer.weight.item() for layer in self.layers]


def trajectory(exchange, steps, gradients=GRADIENTS, **parts):
    """(fast, slow) of both weights after every inner step of one worker."""
    net = Two()
    loop = toy.outer(net, exchange, **parts)
    inner, seen = torch.optim.SGD(net.parameters(), lr=A), []
    for _ in range(steps):
        inner.zero_grad()
        (gradients[exchange.rank] * sum(layer.weight.sum() for layer in net.layers)).backward()
        inner.step()
        loop.after_inner_step(1)
        seen.append((net.values(), [float(x) for x in loop.slow.values()]))
    return seen


def close(seen, expected):
    """Every weight of every step, of every worker."""
    for worker, steps in enumerate(expected):
        for step, (got, want) in enumerate(zip(seen[worker], steps, strict=True)):
            for g, w in zip([*got[0], *got[1]], [*want[0], *want[1]], strict=True):
                assert g == pytest.approx(w, abs=2e-6), (worker, step)


@pytest.mark.parametrize(("lr", "mu", "nesterov"), [(0.7, 0.9, True), (0.5, 0.6, False), (1.0, 0.0, False)])
def test_diloco(lr, mu, nesterov):
    """b ← μ b + ḡ;  φ ← φ − η (ḡ + μ b)  or  φ − η b;  H = 4, three workers, five rounds."""
    seen = toy.run_workers(
        3, lambda e: trajectory(e, 20, schedule=EveryH(sync_every=4), method=toy.sgd(lr, mu, nesterov))
    )
    fast = [START.copy() for _ in GRADIENTS]
    slow, b, expected = START.copy(), [0.0, 0.0], [[] for _ in GRADIENTS]
    for step in range(1, 21):
        for m, c in enumerate(GRADIENTS):
            fast[m] = [w - A * c for w in fast[m]]
        if step % 4 == 0:
            for i in range(2):
                g = sum(slow[i] - fast[m][i] for m in range(3)) / 3
                b[i] = mu * b[i] + g
                slow[i] -= lr * (g + mu * b[i]) if nesterov else lr * b[i]
            fast = [slow.copy() for _ in GRADIENTS]
        for m in range(3):
            expected[m].append((fast[m].copy(), slow.copy()))
    close(seen, expected)


@pytest.mark.parametrize("merge_local", [0.0, 0.5, 1.0, "carry"])
@pytest.mark.parametrize("delay", [0, 1])
def test_streaming(delay, merge_local):
    """Two fragments at offsets 3 and 6 of H = 6; Δ is taken at launch, the mean lands `delay` steps later.

    carry: θ ← φ + (θ − θ at the launch).
    """
    schedule = Streaming(sync_every=6, fragments=2, delay=delay)
    lr, mu, steps, then = 0.7, 0.9, 25, {}
    seen = toy.run_workers(
        3,
        lambda e: trajectory(e, steps, schedule=schedule, method=toy.sgd(lr, mu, True), merge_local=merge_local),
    )
    fast = [START.copy() for _ in GRADIENTS]
    slow, b, sent, expected = START.copy(), [0.0, 0.0], {}, [[] for _ in GRADIENTS]
    for step in range(1, steps + 1):
        for m, c in enumerate(GRADIENTS):
            fast[m] = [w - A * c for w in fast[m]]
        for i, offset in enumerate([3, 6]):
            if step >= offset and (step - offset) % 6 == 0:
                sent[i, step + delay] = sum(slow[i] - fast[m][i] for m in range(3)) / 3
                then[i] = [fast[m][i] for m in range(3)]
        for i in range(2):
            if (i, step) in sent:
                g = sent[i, step]
                b[i] = mu * b[i] + g
                slow[i] -= lr * (g + mu * b[i])
                for m in range(3):
                    if merge_local == "carry":
                        fast[m][i] = slow[i] + fast[m][i] - then[i][m]
                    else:
                        fast[m][i] = merge_local * fast[m][i] + (1 - merge_local) * slow[i]
        for m in range(3):
            expected[m].append((fast[m].copy(), slow.copy()))
    close(seen, expected)


def test_eager_updates():
    """Δ̃_m(t) = mean Δ(t − H) + (Δ_m(t) − Δ_m(t − H)) / M, plain SGD outside; slow weights differ by worker."""
    seen = toy.run_workers(
        3, lambda e: trajectory(e, 12, schedule=EveryH(sync_every=3, delay=3), method=toy.sgd(0.5), eager=True)
    )
    fast, slow = [START.copy() for _ in GRADIENTS], [START.copy() for _ in GRADIENTS]
    before, expected = [[0.0, 0.0] for _ in GRADIENTS], [[] for _ in GRADIENTS]
    for step in range(1, 13):
        for m, c in enumerate(GRADIENTS):
            fast[m] = [w - A * c for w in fast[m]]
        if step % 3 == 0:
            now = [[slow[m][i] - fast[m][i] for i in range(2)] for m in range(3)]
            for m in range(3):
                for i in range(2):
                    mean = sum(d[i] for d in before) / 3
                    slow[m][i] -= 0.5 * (mean + (now[m][i] - before[m][i]) / 3)
                fast[m] = slow[m].copy()
            before = now
        for m in range(3):
            expected[m].append((fast[m].copy(), slow[m].copy()))
    close(seen, expected)


@pytest.mark.parametrize(
    ("alpha", "beta", "gamma", "consensus"),
    [(0.5, 0.7, None, "inside"), (0.5, 0.7, 0.4, "inside"), (0.9, 0.7, 1.0, "outside")],
)
def test_noloco(alpha, beta, gamma, consensus):
    """Three workers, pairs by the exchange's own dealing, the odd one alone; six rounds of H = 2."""

    def gossip(pairs):
        method = NoLoCo(alpha=alpha, beta=beta, gamma=gamma, consensus=consensus)
        seen = trajectory(pairs, 12, schedule=EveryH(sync_every=2), method=method)
        return seen, [pairs.partners(Round(r)) for r in range(6)]

    results = toy.run_workers(3, gossip, partial(InProcessGossip, group=2, seed=3))
    pull = beta if gamma is None else gamma
    fast, slow = [START.copy() for _ in GRADIENTS], [START.copy() for _ in GRADIENTS]
    delta, expected = [[0.0, 0.0] for _ in GRADIENTS], [[] for _ in GRADIENTS]
    for step in range(1, 13):
        for m, c in enumerate(GRADIENTS):
            fast[m] = [w - A * c for w in fast[m]]
        if step % 2 == 0:
            old_fast, old_slow = [w.copy() for w in fast], [w.copy() for w in slow]
            for m in range(3):
                group = results[m][1][step // 2 - 1]
                assert m in group
                for i in range(2):
                    progress = sum(old_fast[j][i] - old_slow[j][i] for j in group) / len(group)
                    towards = sum(old_slow[j][i] for j in group) / len(group) - old_slow[m][i]
                    delta[m][i] = alpha * delta[m][i] + beta * progress
                    if consensus == "inside":
                        delta[m][i] += pull * towards
                        slow[m][i] += delta[m][i]
                    else:
                        slow[m][i] += delta[m][i] + pull * towards
                fast[m] = slow[m].copy()
        for m in range(3):
            expected[m].append((fast[m].copy(), slow[m].copy()))
    close([seen for seen, _ in results], expected)


class ToWhole(Identity):
    """A codec of the test's own: rounds to whole numbers."""

    def encode(self, x, context):
        return super().encode(x.round(), context)


def test_loco():
    """h = Δ + e;  e ← β e + (1 − β)(h − round h), forgotten after every third landing; outer SGD lr 1."""
    gradients = [3.1, 6.7]
    seen = toy.run_workers(
        2,
        lambda e: trajectory(
            e,
            10,
            gradients,
            schedule=EveryH(sync_every=1),
            compress=ToWhole(),
            feedback=LoCo(beta=0.25, reset_every=3, bits=32),
        ),
    )
    fast, slow, expected = [START.copy() for _ in gradients], START.copy(), [[] for _ in gradients]
    error = [[0.0, 0.0] for _ in gradients]
    for step in range(1, 11):
        for m, c in enumerate(gradients):
            fast[m] = [w - A * c for w in fast[m]]
        sent = [[0.0, 0.0] for _ in gradients]
        for m in range(2):
            for i in range(2):
                h = slow[i] - fast[m][i] + error[m][i]
                sent[m][i] = float(round(h))
                error[m][i] = 0.25 * error[m][i] + 0.75 * (h - sent[m][i])
                if step % 3 == 0:
                    error[m][i] = 0.0
        for i in range(2):
            slow[i] -= (sent[0][i] + sent[1][i]) / 2
        for m in range(2):
            fast[m] = slow.copy()
            expected[m].append((fast[m].copy(), slow.copy()))
    close(seen, expected)


def test_local_error():
    """Δ = φ − θ;  φ ← φ − mean of round(Δ);  θ ← φ − β (Δ − round Δ): what rounding drops stays in the fast weights."""
    gradients, beta = [3.1, 6.7], 0.5
    seen = toy.run_workers(
        2,
        lambda e: trajectory(
            e,
            8,
            gradients,
            schedule=EveryH(sync_every=2),
            compress=ToWhole(),
            feedback=LocalError(beta=beta),
        ),
    )
    fast, slow, expected = [START.copy() for _ in gradients], START.copy(), [[] for _ in gradients]
    for step in range(1, 9):
        for m, c in enumerate(gradients):
            fast[m] = [w - A * c for w in fast[m]]
        if step % 2 == 0:
            deltas = [[p - w for p, w in zip(slow, weights, strict=True)] for weights in fast]
            means = [sum(map(round, column)) / 2 for column in zip(*deltas, strict=True)]
            slow = [p - mean for p, mean in zip(slow, means, strict=True)]
            fast = [[p - beta * (d - round(d)) for p, d in zip(slow, delta, strict=True)] for delta in deltas]
        for m in range(2):
            expected[m].append((fast[m].copy(), slow.copy()))
    close(seen, expected)
