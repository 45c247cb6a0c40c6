"""Train with and without one hostile peer. Measure the final loss, the refusals and the number of distinct replicas.

    .venv/bin/python scripts/bench_hostile.py --out FOLDER [--peers 3,10] [--rounds 20] [--seed 0] [option=value ...]

The recipe is SparseLoCo, and workers are threads of one process. From round 3 on, the last worker sends messages that
depend on the case:

    calm       the worker is honest                     open       the worker is honest, clip=none
    absent     its messages are missing                 largest    every level is the largest bfloat16
    ten        its own message times 10                 flipped    its own message times -10
    samples    it claims 2^63 samples

Three of these cases also run with clip=none: open-largest, open-ten, open-flipped. The script writes one JSON record
per run to FOLDER and skips runs that already have one. The loss is that of the slow weights on the validation set, in
nats per token.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from outerloop import wire
from outerloop.config import build, instantiate, load
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.types import Contribution, Stopped

FROM = 3
OPTIONS = ("recipe=sparseloco", "model=nano", "model.layers=2", "inner.seq_len=64", "inner.batch=4", "threads=1")
LARGEST = float(torch.finfo(torch.bfloat16).max)
KINDS = ("calm", "open", "absent", "largest", "ten", "flipped", "samples", "open-largest", "open-ten", "open-flipped")


def forged(one: Contribution, kind: str) -> Contribution:
    """Return the message that the hostile peer sends in place of its own."""
    header, tensors = wire.read(bytes(one.blob))
    parts = {str(i): {name: changed(x, name, kind) for name, x in parts.items()} for i, parts in enumerate(tensors)}
    if kind == "samples":
        header = wire.Header(**vars(header) | {"samples": 2**63})
    return Contribution(one.peer, one.round, wire.pack(header, parts))


def changed(x: torch.Tensor, name: str, kind: str) -> torch.Tensor:
    """Return a modified message part. Levels and values are bfloat16; the high bit of a 2-bit code is its sign."""
    if kind == "flipped" and name.endswith("code"):
        return x ^ 0b10101010
    if x.dtype != torch.bfloat16 or kind == "samples":
        return x
    if kind == "largest":
        return torch.full_like(x, LARGEST)
    return x * (-10 if kind == "flipped" and name == "value" else 10)


class Hostile:
    """An in-process exchange that replaces the last peer's messages, and whose rounds may complete without a peer."""

    info = replace(InProcess.info, waits_for_all=False)

    def __init__(self, inner: InProcess, kind: str) -> None:
        self.inner, self.kind = inner, kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def start(self, blob: bytes, round: Any) -> Any:
        pending = self.inner.start(blob, round)
        return Changed(pending, self.kind) if self.kind not in ("calm", "open") and round.number >= FROM else pending


class Changed:
    """A pending round in which the last peer's message is replaced."""

    def __init__(self, pending: Any, kind: str) -> None:
        self.pending, self.kind = pending, kind

    def wait(self, timeout_s: float) -> list[Contribution]:
        *rest, last = self.pending.wait(timeout_s)
        return rest if self.kind == "absent" else [*rest, forged(last, self.kind)]

    def arrived(self) -> bool:
        return False


def run(peers: int, kind: str, *, rounds: int, seed: int, options: list[str]) -> dict[str, Any]:
    """Run one case and return its record."""
    clip = "none" if kind.startswith("open") else "auto"
    typed = [*OPTIONS, f"workers={peers}", f"rounds={rounds}", f"seed={seed}", f"clip={clip}", "exchange=inprocess"]
    settings = load.load([*typed, *options])
    corpus, hub, began_s = instantiate.make(settings.data), Hub(peers), time.perf_counter()
    losses: dict[Any, Any] = {}
    refused: list[tuple[str, ...]] = []
    errors: list[str] = []

    def live(rank: int) -> None:
        exchange = InProcess(hub=hub, rank=rank)
        try:
            exchange.join()
            trainer: Any = build.make_trainer(settings, corpus, Hostile(exchange, kind.removeprefix("open-")), rank)
            while trainer.outer.inner_step < trainer.outer.schedule.inner_steps(rounds):
                for report in trainer.step().rounds:
                    if rank == 0:
                        refused.append(report.refused)
            if rank == 0:
                losses["val"] = loss_of(trainer, corpus, settings)
            losses[rank] = trainer.outer.slow_hash
        except (Exception, Stopped) as error:
            errors.append(f"{type(error).__name__}: {error}")
            hub.stop("a worker failed")
        finally:
            exchange.close()

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(peers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    named = [why for one in refused for why in one]
    return {
        "peers": peers,
        "kind": kind,
        "clip": clip,
        "seed": seed,
        "rounds": rounds,
        "rounds_landed": len(refused),
        "val_nats": losses.pop("val", None),
        "slow_hashes": len(set(losses.values())),
        "refused": len(named),
        "refused_others": sum(not why.startswith(f"{peers - 1:03d}: ") for why in named),
        "first_reason": named[0] if named else "",
        "error": errors[0][:200] if errors else "",
        "minutes": round((time.perf_counter() - began_s) / 60, 2),
        "options": [*typed, *options],
    }


def loss_of(trainer: Any, corpus: Any, settings: Any) -> float:
    """Return the validation loss of the slow weights in nats per token."""
    windows = corpus.validation(seq_len=settings.inner.seq_len, sequences=settings.eval.sequences)
    return trainer.evaluate(windows, trainer.outer.slow, batch=32) / windows[:, 1:].numel()


def main() -> None:
    """Run every case that has no record yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--peers", default="3,10")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for peers in map(int, args.peers.split(",")):
        for kind in args.kinds.split(","):
            path = args.out / f"{kind}-{peers}-{args.seed}.json"
            if not path.exists():
                record = run(peers, kind, rounds=args.rounds, seed=args.seed, options=args.options)
                path.write_text(json.dumps(record, indent=1) + "\n")
                print(path.name, record["val_nats"], record["refused"], record["error"], file=sys.stderr)


if __name__ == "__main__":
    main()
