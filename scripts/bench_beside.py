"""Measure how much a run slows down if other programs use the same cores: one more run, three more, or a busy loop.

    .venv/bin/python scripts/bench_beside.py --json FILE [--pairs 5] [--model nano] [--python OTHER/.venv/bin/python]

Each pair measures one run alone, and then the same run together with the other programs. The ratio is the time of the
slowest run among these divided by the time of the run alone. Both include the start of the process. Pairs that FILE
already has are skipped; if one of this model has another interpreter, the exit code is 2. The busy loop runs at nice
10. Pass the interpreter of another checkout as `--python` to measure that checkout instead of this one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmark_records import check_options, read_records, write_records
from result_rows import Row, show

OPTIONS = ["recipe=sparseloco", "exchange=inprocess", "workers=2", "rounds=6", "eval.every=0", "eval.sequences=16"]
CASES = {"alone": (1, 0), "two": (2, 0), "four": (4, 0), "busy loop": (1, 1)}
"""Case -> number of concurrent runs, and number of busy loops at nice 10."""
LIMITS = {"two": 2.2, "four": 4.5, "busy loop": 1.3}
"""Case -> maximum allowed ratio of its time to the time of a run alone."""


def main() -> None:
    """Measure the pairs that FILE does not have yet, then print the median ratio of each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    python = str(Path(args.python).absolute())
    rows = read_records(args.json, list[Row]())
    for row in rows:
        if row["model"] == args.model:
            check_options(row, {"python": python}, what=f"{args.json}: a pair of {args.model}")
    for pair in range(args.pairs):
        for case in LIMITS:
            if not any((row["case"], row["pair"], row["model"]) == (case, pair, args.model) for row in rows):
                rows.append(measured(case, pair, args.model, python))
                show(rows[-1])
                write_records(args.json, rows)
    for case, limit in LIMITS.items():
        ratios = [row["ratio"] for row in rows if (row["case"], row["model"]) == (case, args.model)]
        print(f"{args.model} {case}: median {statistics.median(ratios):.2f} of {len(ratios)} pairs, limit {limit}")


def measured(case: str, pair: int, model: str, python: str) -> Row:
    """Time a run alone, and the slowest run next to other programs. Return both times and their ratio."""
    alone_s, beside_s = (seconds(*CASES[name], model, python) for name in ("alone", case))
    return {
        "case": case,
        "pair": pair,
        "model": model,
        "python": python,
        "alone_s": round(alone_s, 2),
        "beside_s": round(beside_s, 2),
        "ratio": round(beside_s / alone_s, 3),
    }


def seconds(runs: int, loops: int, model: str, python: str) -> float:
    """Return the seconds of the slowest of `runs` concurrent runs, next to `loops` busy loops."""
    folder = Path(tempfile.mkdtemp(prefix="outerloop-beside-"))
    try:
        with busy(loops):
            began = time.monotonic()
            processes = [start(python, [f"model={model}", f"run_dir={folder / str(run)}"]) for run in range(runs)]
            codes = [process.wait() for process in processes]
            took_s = time.monotonic() - began
    finally:
        shutil.rmtree(folder)
    if any(codes):
        raise SystemExit(f"a run failed with exit code {max(codes)}")
    return took_s


def start(python: str, options: list[str]) -> subprocess.Popen[bytes]:
    """Start one run without OMP settings, so that it chooses its own number of threads."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    command = [python, "-m", "outerloop", "train", *OPTIONS, *options]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep busy loops running at nice 10 for the duration of the block."""
    processes = [subprocess.Popen(["nice", "-n", "10", sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
