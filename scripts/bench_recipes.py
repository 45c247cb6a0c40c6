"""Recipes beside each other: the same tokens, model, data and tuning budget; workers as threads of this process.

    .venv/bin/python scripts/bench_recipes.py --runs FOLDER [--json FILE] [--cases ddp,diloco,...] [--sync-every 15]
        [--workers 4] [--seeds 0,1] [--lr 1e-3,2e-3,4e-3] [--inner-steps 1200] [option=value ...]

Each case trains `inner-steps` steps a worker. For every case, H and number of workers the learning rate with the lowest
validation loss at the first seed is taken, and the other seeds run with it. FOLDER keeps every run: the same command
goes on where it stopped, and `outerloop report FOLDER` draws them. Options are those of `outerloop train`.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from outerloop.commands import config
from outerloop.commands.train import train

EVERY_STEP = ["schedule.sync_every=1"]
DDP = ["recipe=ddp", "exchange=inprocess", *EVERY_STEP]
CASES = {
    "ddp": DDP,
    "localsgd": ["recipe=localsgd", "exchange=inprocess"],
    "diloco_.7_.9": ["recipe=diloco", "exchange=inprocess"],
    "diloco_.7_.6": ["recipe=diloco", "exchange=inprocess", "method.optimizer.momentum=0.6"],
    "diloco_int8": ["recipe=diloco_int8", "exchange=inprocess", "method.optimizer.momentum=0.6"],
    "loco_int4": ["recipe=loco", "exchange=inprocess", "method.optimizer.momentum=0.6"],
    "streaming": ["recipe=streaming_diloco", "exchange=inprocess", "method.optimizer.momentum=0.6"],
    "noloco": ["recipe=noloco"],
    "sparseloco": ["recipe=sparseloco", "exchange=inprocess"],
    "sparseloco_mean": ["recipe=sparseloco", "exchange=inprocess", "aggregate=mean"],
    "sparseloco_k64": ["recipe=sparseloco", "exchange=inprocess", "compress.large.k=64"],
    "sparseloco_warm": ["recipe=sparseloco", "exchange=inprocess", "compress.large.warmup_rounds=10"],
    "decoupled_momentum": ["recipe=decoupled_momentum", "exchange=inprocess"],
    "muloco": ["recipe=muloco", "exchange=inprocess"],
}


def one_run(
    case: str, folder: Path, *, h: int, workers: int, seed: int, lr: str, steps: int, options: list[str]
) -> dict:
    """Train one case, or read what it left; a flat record."""
    h = 1 if "sync_every=1" in " ".join(CASES[case]) else h
    run_dir = folder / f"{case}-h{h}-w{workers}-lr{lr}-s{seed}"
    rounds = steps // h
    if not (run_dir / "summary.json").exists():
        often = max(1, rounds // 6)
        sizes = [f"schedule.sync_every={h}", f"rounds={rounds}", f"eval.every={often}", f"checkpoint.every={often}"]
        chosen = [o for o in CASES[case] if not o.startswith("schedule.sync_every")]
        where = [f"workers={workers}", f"seed={seed}", f"inner.lr={lr}", f"run_dir={run_dir}"]
        train(config.load([*chosen, *sizes, *where, *options]))
    summary = json.loads((run_dir / "summary.json").read_text())
    kept = ("val_loss", "tokens", "params", "bits_per_param_per_round", "payload_bytes_per_worker", "wall_s")
    return {"case": case, "sync_every": h, "workers": workers, "seed": seed, "lr": float(lr)} | {
        key: summary[key] for key in kept
    }


def tuned(case: str, lrs: list[str], seeds: list[int], **settings: Any) -> list[dict]:
    """Every learning rate at the first seed, then the best one at the others; `chosen` marks its rows."""
    rows = [one_run(case, seed=seeds[0], lr=lr, **settings) for lr in lrs]
    best = min(zip(rows, lrs, strict=True), key=lambda pair: pair[0]["val_loss"])[1]
    rows += [one_run(case, seed=seed, lr=best, **settings) for seed in seeds[1:]]
    return [row | {"chosen": row["lr"] == float(best)} for row in rows]


def numbers(text: str) -> list[int]:
    """ "15,30" -> [15, 30]"""
    return [int(word) for word in text.split(",")]


def main() -> None:
    """Run the product of cases, H and workers; print the chosen rows, best first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--sync-every", type=numbers, default=[15])
    parser.add_argument("--workers", type=numbers, default=[4])
    parser.add_argument("--seeds", type=numbers, default=[0])
    parser.add_argument("--lr", default="2e-3")
    parser.add_argument("--inner-steps", type=int, default=1200)
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    rows = []
    for case, h, workers in itertools.product(args.cases.split(","), args.sync_every, args.workers):
        settings = {"h": h, "workers": workers, "steps": args.inner_steps, "options": args.options}
        rows += tuned(case, args.lr.split(","), args.seeds, folder=args.runs, **settings)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n")
    for row in sorted((row for row in rows if row["chosen"]), key=lambda row: row["val_loss"]):
        print(
            f"{row['case']:20} H {row['sync_every']:4} workers {row['workers']} seed {row['seed']} lr {row['lr']:.0e}"
            f"  {row['val_loss']:.4f} nats  {row['bits_per_param_per_round']:.3f} bits/parameter/round"
        )


if __name__ == "__main__":
    main()
