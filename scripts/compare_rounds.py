"""Check that two checkouts train bit-identically, with every recipe, codec, feedback, aggregate and method.

    .venv/bin/python scripts/compare_rounds.py --before CHECKOUT [--after CHECKOUT] --runs FOLDER [CASE ...]

Each case runs four rounds of `outerloop train` with two workers and the nano model in both checkouts, with this
interpreter. The script compares the hash of the slow weights after every round of every worker, and the bytes of every
payload. A case that one checkout rejects must be rejected by the other as well. The script prints one line per case,
and exits with 1 if any case differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
SMALL = [
    "model=nano",
    "workers=2",
    "threads=1",
    "rounds=4",
    "inner.seq_len=16",
    "inner.batch=2",
    "inner.warmup_steps=2",
]
SMALL += ["eval.sequences=4", "eval.every=0", "checkpoint.every=0", "keep_payload_rounds=9", "log_every=1000000"]
STEPS_ITSELF = ("ddp", "demo", "sparta")
"""Recipes in which every inner step is a round."""
FRAGMENTS = 4
"""Number of fragments of the streaming recipe on the nano model. With sync_every=4, each inner step is a round."""


def cases() -> dict[str, list[str]]:
    """Return a map from case to options: every recipe, and SparseLoCo with each choice on one of four axes."""
    found = {}
    for recipe in names("recipe"):
        steps = [] if recipe in STEPS_ITSELF else [f"schedule.sync_every={FRAGMENTS if 'streaming' in recipe else 2}"]
        exchange = [] if recipe == "noloco" else ["exchange=inprocess"]
        found[recipe] = [f"recipe={recipe}", *steps, *exchange]
    for axis in ("compress", "feedback", "aggregate", "method"):
        for choice in names(axis):
            found[f"{axis}={choice}"] = [*found["sparseloco"], f"{axis}={choice}"]
    return found


def names(group: str) -> list[str]:
    """Return the names of all choices in a config group."""
    return sorted(file.stem for file in (HERE / "configs" / group).glob("*.yaml"))


def trained(checkout: Path, folder: Path, options: list[str]) -> dict[str, str]:
    """Train one case. Return a map from round and worker to slow-weight hash, and from payload file to sha256.

    If the checkout rejects the case, return only its exit code, under "refused".
    """
    command = [sys.executable, "-m", "outerloop", "train", *SMALL, *options, f"run_dir={folder}"]
    env = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
    if done.returncode:
        return {"refused": f"exit code {done.returncode}"}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = {
        f"{row['event']} {row.get('round')} of worker {row.get('worker')}": row["slow_hash"]
        for row in rows
        if "slow_hash" in row
    }
    for payload in sorted(folder.glob("workers/*/payloads/*")):
        found[str(payload.relative_to(folder))] = hashlib.sha256(payload.read_bytes()).hexdigest()
    return found


def main() -> int:
    """Compare all cases, or those named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--after", type=Path, default=HERE, metavar="CHECKOUT")
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER", help="parent of the run directories")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    args = parser.parse_args()
    differ = 0
    for name, options in cases().items():
        if args.cases and name not in args.cases:
            continue
        before, after = (
            trained(checkout.resolve(), args.runs.resolve() / side / name.replace("=", "-"), options)
            for side, checkout in (("before", args.before), ("after", args.after))
        )
        unequal = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        differ += bool(unequal)
        outcome = f"DIFFERS: {', '.join(unequal[:3])}" if unequal else before.get("refused", f"{len(before)} equal")
        print(f"{name:24} {outcome}", flush=True)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
