"""Measure how often audits by replay find a faked inner step, how often a peer is picked, and what an audit costs.

    PYTHONPATH=. .venv/bin/python scripts/bench_audits.py [--windows 50] [--commits 10000] [--json FILE]

A round has H inner steps. The trainer's state is hashed into a leaf every J inner steps; the steps between two leaves
are a window. In each round, each peer is audited with probability q: an auditor replays one of its windows.

detection   for each kind of fake, windows of J = 5 inner steps (model=nano) of which one is faked; and as many honest
            windows as faked ones together: the number of windows whose replay ends in another leaf
picks       over simulated commits (hashes of numbers), with 10 peers of one machine class and q = 0.1: the share of
            rounds in which a peer that fakes is found and expelled, and in which lying auditors get an honest peer
            expelled
cost        CPU seconds and bytes of leaves, states and replays with model=tiny, H = 30, J = 5, on one thread
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from result_rows import show

from outerloop.config import build, instantiate, load
from outerloop.exchange.inprocess import Hub
from outerloop.inner.audit.replay import replay
from outerloop.inner.audit.state import capture, leaf_of
from outerloop.inner.trainer import Trainer
from outerloop.swarm.audit.leaves import LEAF_BYTES, Header
from outerloop.swarm.audit.picks import picks

Row = dict[str, Any]
Windows = list[torch.Tensor]
README = Path(__file__).parents[1] / "README.md"
EVERY, ROUND_STEPS = 5, 30
PROBABILITY, PEERS = 0.1, 10


def trainer_of(*options: str) -> Trainer[Any]:
    """Return the trainer of one worker without a network."""
    settings = load.load(
        ["exchange=inprocess", "workers=1", "data=text", f"data.files=[{README}]", "rounds=100000", *options]
    )
    exchange = instantiate.make(settings.exchange, hub=Hub(1), rank=0)
    exchange.join()
    return build.make_trainer(settings, instantiate.make(settings.data), exchange, 0)


def skip(trainer: Trainer[Any], windows: Windows) -> None:
    """Fake an inner step by leaving it out."""


def change_data(trainer: Trainer[Any], windows: Windows) -> None:
    """Fake an inner step by changing one token of its data."""
    windows[0][0, 0] ^= 1
    trainer.train_on(windows)


def scale_gradient(trainer: Trainer[Any], windows: Windows) -> None:
    """Fake an inner step by doubling the gradient of one parameter."""
    handle = trainer.params[-1].register_hook(lambda gradient: 2 * gradient)
    trainer.train_on(windows)
    handle.remove()


def add_noise(trainer: Trainer[Any], windows: Windows) -> None:
    """Fake an inner step by adding 1e-6 to one weight after it."""
    trainer.train_on(windows)
    with torch.no_grad():
        trainer.params[0].view(-1)[0] += 1e-6


FAKES: dict[str, Callable[[Trainer[Any], Windows], None] | None] = {
    "none (honest)": None,
    "skipped step": skip,
    "one other token": change_data,
    "doubled gradient of one parameter": scale_gradient,
    "1e-6 added to one weight": add_noise,
}


def detection(count: int) -> Iterator[Row]:
    """Yield one row for each kind of fake: the number of windows, and how many of their replays differ."""
    for kind, fake in FAKES.items():
        trainer = trainer_of("model=nano", "inner.seq_len=16", "inner.batch=4", "schedule.sync_every=100000")
        windows = count * (len(FAKES) - 1) if fake is None else count
        differing = sum(differs(trainer, fake, at=number % EVERY) for number in range(windows))
        yield {"part": "detection", "fake": kind, "windows": windows, "differing": differing}


def differs(trainer: Trainer[Any], fake: Callable[[Trainer[Any], Windows], None] | None, *, at: int) -> bool:
    """Train one window in which step `at` is faked, replay the window, and return whether the leaves differ."""
    start, steps, inner_step = capture(trainer), [], trainer.outer.inner_step
    for step in range(EVERY):
        windows = [trainer.stream.next() for _ in range(trainer.accumulate)]
        steps.append([window.clone() for window in windows])
        (fake if fake and step == at else Trainer.train_on)(trainer, windows)
        trainer.outer.after_inner_step(1)
    return replay(trainer, start, steps, inner_step=inner_step, every=EVERY) != [leaf_of(capture(trainer))]


def chances(commits: int) -> Iterator[Row]:
    """Yield one row for each number of colluding liars: the shares of rounds in which peers are audited or expelled."""
    header = Header(1 + ROUND_STEPS // EVERY, b"r" * 32, b"m" * 32)
    peers = [f"{number:03d}-peer{number}" for number in range(PEERS)]
    for liars in (1, 2, 3):
        lying, audited, found, window, framed = set(peers[:liars]), 0, 0, 0, 0
        for number in range(commits):
            commit = hashlib.sha256(str(number).encode()).digest()
            drawn = picks(number, commit, dict.fromkeys(peers, header), probability=PROBABILITY)
            liar, honest = drawn.get(peers[0]), drawn.get(peers[-1])
            audited += liar is not None
            honest_auditors = liar is not None and not lying.intersection(liar.auditors)
            found += honest_auditors
            window += honest_auditors and liar is not None and liar.window == 0
            framed += honest is not None and lying.issuperset(honest.auditors)
        yield {
            "part": "picks",
            "liars": liars,
            "peers": PEERS,
            "probability": PROBABILITY,
            "rounds": commits,
            "liar_audited": audited / commits,
            "liar_expelled_if_all_windows_are_faked": found / commits,
            "liar_expelled_if_one_of_six_is_faked": window / commits,
            "honest_peer_expelled_by_liars": framed / commits,
        }


def cost() -> Row:
    """Return CPU seconds and bytes of a round's leaves, and of an audit of one window."""
    torch.set_num_threads(1)
    trainer = trainer_of("model=tiny", f"schedule.sync_every={ROUND_STEPS}")
    plain_s, deterministic_s = steps_s(trainer)
    leaf_s = min(timed(lambda: leaf_of(capture(trainer))) for _ in range(9))
    start, inner_step = capture(trainer), trainer.outer.inner_step
    steps = [[trainer.stream.next() for _ in range(trainer.accumulate)] for _ in range(EVERY)]
    audit_s = min(timed(lambda: replay(trainer, start, steps, inner_step=inner_step, every=EVERY)) for _ in range(3))
    leaves = 1 + ROUND_STEPS // EVERY
    round_s = ROUND_STEPS * deterministic_s
    return {
        "part": "cost",
        "model": "tiny",
        "parameters": sum(p.numel() for p in trainer.params),
        "step_s": plain_s,
        "deterministic_step_s": deterministic_s,
        "leaf_s": leaf_s,
        "leaves_share_of_a_round": (leaves + 1) * leaf_s / round_s,  # + 1: the hash of the slow weights
        "audit_s": audit_s,
        "audit_share_of_a_round": audit_s / round_s,
        "state_bytes": sum(map(len, start)),
        "states_on_disk_bytes": 3 * (leaves - 1) * sum(map(len, start)),
        "leaves_bytes": 2 * leaves * LEAF_BYTES,
    }


def steps_s(trainer: Trainer[Any]) -> tuple[float, float]:
    """Return the CPU seconds of one inner step without and with deterministic mode: each the shortest of nine steps."""
    measured: dict[bool, list[float]] = {False: [], True: []}
    for number in range(18):
        torch.use_deterministic_algorithms(number % 2 == 1)
        measured[number % 2 == 1].append(timed(trainer.step))
    return min(measured[False]), min(measured[True])


def timed(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=50, help="number of faked windows of each kind; default: 50")
    parser.add_argument("--commits", type=int, default=10_000, help="number of simulated rounds; default: 10000")
    parser.add_argument("--json", type=Path, help="file to which the rows are written")
    args = parser.parse_args()
    rows = []
    for row in chain([cost()], chances(args.commits), detection(args.windows)):
        rows.append(row)
        show(row)
    if args.json:
        args.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
