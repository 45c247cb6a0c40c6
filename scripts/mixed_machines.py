"""Check in whole swarm runs that machines with different vector units and thread counts train the same model.

    .venv/bin/python scripts/mixed_machines.py [--recipes diloco,loco] [--peers 2,3] [--rounds 20] [--again]

Each machine is a separate `outerloop train workers=1` on loopback. MACHINES lists the vector units that torch may use
(ATEN_CPU_CAPABILITY) and the number of threads; avx512 is included if the processor has it. For each run, the script
prints two numbers and writes them to a JSON file in scripts/results/machines/: how many machines loaded the first
machine's initial weights, and the maximum number of different slow weights after any round (1 is correct). SPARTA is
left out, because its peers have different slow weights by design, which a swarm refuses. Unless --again is given, runs
that already have a file are skipped. Exit code 2: such a file has another number of rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark_records import check_options, read_records, write_records
from result_rows import show

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "scripts/results/machines"
HAS_AVX512 = "avx512f" in Path("/proc/cpuinfo").read_text()
MACHINES = [("default", 1), ("avx2", 2), ("avx512" if HAS_AVX512 else "default", 7)]
"""Vector units and number of threads of each machine."""
SMALL = ["model=nano", "eval.sequences=16", "eval.every=0", "checkpoint.every=0", "inner.seq_len=32", "inner.batch=4"]
RECIPES = sorted({path.stem for path in (ROOT / "configs/recipe").glob("*.yaml")} - {"sparta"})
OWN_STEPS = ("ddp", "demo")
"""Recipes that exchange after every inner step."""
LIMIT_S = 1800
Record = dict[str, Any]


def options_of(recipe: str, *, peers: int, rounds: int) -> list[str]:
    """Return the options of every machine in a run. NoLoCo uses gather rounds, like all other recipes."""
    steps = [] if recipe in OWN_STEPS else ["schedule.sync_every=4"]
    if recipe == "streaming_diloco":
        steps = ["schedule.sync_every=6", "schedule.delay=2"]
    swarm = ["exchange=swarm_gather", "workers=1", f"exchange.peers={peers}", "exchange.quorum=all"]
    return [*SMALL, f"recipe={recipe}", *swarm, *steps, f"rounds={rounds}"]


def start(machine: tuple[str, int], folder: Path, options: Sequence[str]) -> subprocess.Popen[str]:
    """Start one machine, given as (vector units, threads)."""
    vectors, threads = machine
    command = [sys.executable, "-m", "outerloop", "train", *options, f"threads={threads}", f"run_dir={folder}"]
    environment = os.environ | {"ATEN_CPU_CAPABILITY": vectors, "OMP_WAIT_POLICY": "passive"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT
    )


def invitation(first: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the option that lets other machines find the first one, and the first machine's output so far.

    Raises RuntimeError if the machine ends before it prints the option.
    """
    said = ""
    assert first.stdout is not None
    for line in first.stdout:
        said += line
        if found := re.search(r"exchange\.initial_peers=\[\S+\]", line):
            return found[0], said
    raise RuntimeError(said)


def run(recipe: str, *, peers: int, rounds: int) -> Record:
    """Train a recipe to the end on `peers` machines, and return the record."""
    options, machines = options_of(recipe, peers=peers, rounds=rounds), MACHINES[:peers]
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(number) for number in range(peers)]
        processes = [start(machines[0], folders[0], options)]
        try:
            address, said = invitation(processes[0])
            for machine, own in zip(machines[1:], folders[1:], strict=True):
                processes.append(start(machine, own, [*options, address]))
            texts = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        codes = [process.returncode for process in processes]
        hashes, failed = told_in(folders)
    text = said + "".join(texts)
    began = re.search(r"(\d+) of \d+ peers begin with other weights", text)
    return {
        "recipe": recipe,
        "machines": [f"{vectors}, threads={threads}" for vectors, threads in machines],
        "rounds": rounds,
        "took_over_the_start": int(began[1]) if began else 0,
        "exit_codes": codes,
        "rounds_landed": len(hashes),
        "rounds_failed": failed,
        "different_slow_weights": max(map(len, hashes.values()), default=0),
        "slow_hash": {round: sorted(of_round) for round, of_round in sorted(hashes.items())},
        "said": text[-2000:] if any(codes) else "",
    }


def told_in(folders: Sequence[Path]) -> tuple[dict[int, set[str]], int]:
    """Return a map from round to the slow-weight hashes of all machines, and the number of failed rounds.

    The hashes are those after the last fragment of the round.
    """
    hashes: defaultdict[int, set[str]] = defaultdict(set)
    failed = 0
    for folder in folders:
        file, of_machine = folder / "metrics.jsonl", {}
        for line in file.read_text().splitlines() if file.exists() else ():
            row = json.loads(line)
            if row["event"] == "round":
                of_machine[row["round"]] = row["slow_hash"]
                failed += bool(row["failed"])
        for round, slow_hash in of_machine.items():
            hashes[round].add(slow_hash)
    return dict(hashes), failed


def is_right(record: Record) -> bool:
    """Return whether all machines finished and held the same model after every round."""
    one_model = record["different_slow_weights"] == 1 and record["rounds_landed"] == record["rounds"]
    return one_model and not any(record["exit_codes"])


def kept(recipe: str, *, peers: int, rounds: int, again: bool) -> Record:
    """Return the record of a run, either from its file or by running it."""
    file = RESULTS / f"{recipe}-{peers}.json"
    if file.exists() and not again:
        record = read_records(file, Record())
        check_options(record, {"rounds": rounds}, what=f"{file}: the record")
        return record
    record = run(recipe, peers=peers, rounds=rounds)
    write_records(file, record, indent=2)
    return record


def main() -> int:
    """Run all recipes and print a line for each. Return 1 if any result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--peers", default="2,3")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    right = True
    for recipe in args.recipes.split(","):
        for peers in map(int, args.peers.split(",")):
            record = kept(recipe, peers=peers, rounds=args.rounds, again=args.again)
            show(record | {"right": is_right(record)}, but=["slow_hash", "said"])
            right &= is_right(record)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
