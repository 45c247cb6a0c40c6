"""Measure the overhead of an attached outer loop, per inner step between rounds (target: below 20 us) and in a round.

    .venv/bin/python scripts/bench_attach.py [--json FILE]

Between rounds: a model of 1M parameters in 16 tensors, and an optimizer whose step does nothing, so that only the hook
is measured. Blocks of steps with and without the hook alternate; the cost is the difference of their medians. One step
of AdamW on the same model is measured for comparison.

In a round: 16.8M parameters and an exchange that takes half a second. The round lands immediately, or 15 steps of 50 ms
later. The second case is measured with and without `sole_writer`, which states that only the optimizer writes the
weights. The script measures how long the launch, the wait for messages, and the landing block training.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from result_rows import show
from torch import nn

import outerloop
from outerloop.core.round import RoundReport
from outerloop.exchange.inprocess import Hub, InProcess, PendingRound
from outerloop.types import Contribution, Round

BLOCKS, STEPS = 200, 500
ROUNDS, STEP_S, UNDER_WAY_S = 6, 0.05, 0.5
RECIPES = ("diloco", "sparseloco", "streaming_diloco")


class Idle(torch.optim.Optimizer):
    """An optimizer that changes nothing."""

    def __init__(self, params) -> None:
        super().__init__(params, {})

    def step(self, closure=None) -> None:  # type: ignore[override]
        pass


class Noise(torch.optim.Optimizer):
    """An optimizer that adds the same values to the weights in every step."""

    def __init__(self, params) -> None:
        super().__init__(params, {})
        self.noise = [1e-3 * torch.randn_like(p) for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure=None) -> None:  # type: ignore[override]
        for p, x in zip(self.param_groups[0]["params"], self.noise, strict=True):
            p.add_(x)


class SlowLink(InProcess):
    """An exchange with one peer. Like a network, it takes UNDER_WAY_S seconds, and accepts messages from any thread."""

    info = replace(InProcess.info, concurrent=True)

    def start(self, blob: bytes, round: Round) -> PendingRound:
        self.here_s = time.monotonic() + UNDER_WAY_S
        return super().start(blob, round)

    def wait(self, round: Round, partners: Sequence[int], timeout_s: float) -> list[Contribution]:
        time.sleep(max(0.0, self.here_s - time.monotonic()))
        return super().wait(round, partners, timeout_s)


def model(width: int = 256) -> nn.Module:
    """Return a model with 16 matrices of shape (width, width)."""
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(16)))


def us_per_step(step: Callable[[], None], steps: int) -> float:
    """Return the mean microseconds per step over one block of steps."""
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return 1e6 * (time.perf_counter() - began) / steps


def hook_us(recipe: str) -> tuple[float, float]:
    """Return the median microseconds of a step without the outer loop's hook, and how many the hook adds."""
    net, exchange = model(), InProcess(hub=Hub(1), rank=0)
    exchange.join()
    optimizer = Idle(net.parameters())
    outer = outerloop.from_recipe(recipe, net, f"schedule.sync_every={10 * BLOCKS * STEPS}", exchange=exchange)
    bare, attached = [], []
    for _ in range(BLOCKS):
        bare.append(us_per_step(optimizer.step, STEPS))
        with outerloop.attach(optimizer, outer, sole_writer=True):
            attached.append(us_per_step(optimizer.step, STEPS))
    assert outer.inner_step == BLOCKS * STEPS
    return statistics.median(bare), statistics.median(attached) - statistics.median(bare)


def still_ms(recipe: str, delay: int, sole_writer: bool) -> dict[str, float]:
    """Return the median milliseconds for which the launch, the wait and the landing of a round block training.

    A sleep stands in for the forward and backward pass.
    """
    net, exchange = model(1024), SlowLink(hub=Hub(1), rank=0)
    exchange.join()
    options = ["schedule.sync_every=20", f"schedule.delay={delay}"]
    outer = outerloop.from_recipe(recipe, net, *options, exchange=exchange)
    optimizer, reports = Noise(net.parameters()), list[RoundReport]()
    with outerloop.attach(optimizer, outer, on_round=reports.append, sole_writer=sole_writer):
        while len(reports) < ROUNDS:
            time.sleep(STEP_S)
            optimizer.step()
    sides = {"launch_ms": "launch_s", "wait_ms": "wait_s", "land_ms": "land_s"}
    return {name: 1e3 * statistics.median(getattr(one, side) for one in reports) for name, side in sides.items()}


def adamw_us() -> float:
    """Return the median microseconds of one fused AdamW step."""
    net = model()
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    return statistics.median(us_per_step(optimizer.step, 5) for _ in range(BLOCKS))


def main() -> None:
    """Run all measurements, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for recipe in RECIPES:
        bare, added = hook_us(recipe)
        rows.append({"recipe": recipe, "bare_us": bare, "hook_us": added})
        show(rows[-1])
    rows.append({"recipe": "fused AdamW, for comparison", "step_us": adamw_us()})
    show(rows[-1])
    for recipe, (delay, sole_writer) in product(("diloco", "sparseloco"), ((0, False), (15, False), (15, True))):
        still = still_ms(recipe, delay, sole_writer)
        rows.append({"recipe": recipe, "delay": delay, "sole_writer": sole_writer, **still})
        show(rows[-1])
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
