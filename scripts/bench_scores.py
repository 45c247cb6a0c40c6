"""Train with free riders and copycats among 8 workers, and record when the scores of one worker accuse them.

    .venv/bin/python scripts/bench_scores.py --out FOLDER [--recipe sparseloco] [--groups free_riders,copycats]
        [--seeds 0,1] [--windows 64] [--payloads 7] [--jobs 1] [option=value ...]

Workers are threads of one process. Worker 0 is honest and scores payloads. The last workers are the liars; they lie
from round 3 on, counted from 0. One run is one JSON file in FOLDER, named group-seed; a run that has a file is skipped,
so the same command continues an interrupted benchmark. Exit code 2: such a file was made with other options. At the
end, the command prints for each kind of liar in how many runs it was accused and after how many rounds of lying, how
many honest peers were accused, and how many runs failed; these count nowhere else. A run takes about 30 s on one core.

free_riders    replay   its own payload of round 3, sent again in every round
               stale    the payload that worker 1 sent 5 rounds ago (3 or 4 at first): too old to be noticed by the
                        comparison with the payloads of the last two rounds
               noise    Gaussian noise of the norm of an honest payload
copycats       copy     the payload that worker 1 sends in the same round
               flip     the payload that worker 1 sends in the same round, with flipped signs

Worker 0 notices a copy of its own payload of the same round at once, so the liars copy another one.

The model is `tiny` with one layer and windows of 32 bytes; a round is 15 inner steps of 4 windows, so a peer is
assigned 60 windows per round.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from attacked_run import FROM, Case, HostileHub, Run
from bench_recipes import chosen_from, numbers
from benchmark_records import check_options, read_records, write_records
from payload_attacks import ATTACKS, DELAY, Scene
from torch import Tensor

from outerloop.exchange.inprocess import name_of

WORKERS, LYING = 8, 10
"""Number of workers, and number of rounds in which liars lie."""
VICTIM = 1
"""Rank of the worker whose payloads are copied."""
SIZE = ("model=tiny", "model.layers=1", "inner.seq_len=32", "inner.batch=4", "assignment=by_round", "clip=auto")
LIES: dict[str, Callable[[Scene], Tensor]] = {
    "stale": lambda scene: scene.ago(VICTIM, DELAY),
    "noise": ATTACKS["noise"],
    "copy": lambda scene: scene.ago(VICTIM, 0),
    "flip": lambda scene: -scene.ago(VICTIM, 0),
}
FIELDS = ("gain", "gain_error", "other", "benefit", "benefit_error")
"""Fields of a score in a record, after its round and its peer."""
GROUPS = {"free_riders": ("replay", "stale", "noise"), "copycats": ("copy", "flip")}


@dataclass(frozen=True)
class Settings:
    """The settings of all runs of one command."""

    recipe: str
    windows: int
    payloads: float
    options: tuple[str, ...]

    def case(self, group: str, seed: int) -> Case:
        """Return the case of a run."""
        return Case(self.recipe, "plain", group, len(GROUPS[group]), WORKERS, FROM + LYING, seed)

    @property
    def more(self) -> list[str]:
        """Return the options of `outerloop train` that follow those of the case."""
        return [*SIZE, f"scores.payloads={self.payloads}", f"scores.windows={self.windows}", *self.options]


class MixedHub(HostileHub):
    """The hub of a run in which each liar has its own lie: the i-th liar has the i-th of `lies`."""

    def __init__(self, case: Case, lies: Sequence[str]) -> None:
        super().__init__(case)
        self.lies = dict(zip(self.liars, lies, strict=True))
        self.replayed: dict[int, Tensor] = {}

    def lie(self, liar: int) -> bytes:
        """Return the message that a liar sends."""
        now, lie = self.recent[-1], self.lies[liar]
        if lie == "replay":
            values = self.replayed.setdefault(liar, now.values(liar))
        else:
            values = LIES[lie](Scene(liar, self.honest, self.recent, self.case.seed))
        return now.packed(liar, values)


class ScoredRun(Run):
    """A run in which worker 0 scores the payloads of all workers."""

    def __init__(self, group: str, seed: int, settings: Settings) -> None:
        super().__init__(settings.case(group, seed), settings.more)
        self.hub: MixedHub = MixedHub(self.case, GROUPS[group])
        self.events: list[dict[str, Any]] = []

    def train(self, rank: int, trainer: Any) -> None:
        """Attach the scorer to worker 0, then take all inner steps of a worker."""
        if rank == 0:
            trainer.outer.observe_landings(self.scorer(rank, trainer, self.emit))
        super().train(rank, trainer)

    def emit(self, event: str, **fields: Any) -> None:
        """Store an event."""
        self.events.append({"event": event, **fields})

    def record(self) -> dict[str, Any]:
        """Train, and return the record of the run."""
        record = super().record()
        accused = {event["peer"]: event for event in self.events if event["event"] == "accusation"}
        liars = {name_of(rank): lie for rank, lie in self.hub.lies.items()}
        scores = [event for event in self.events if event["event"] == "score"]
        return record | {
            "named": {lie: found(accused.get(peer)) for peer, lie in liars.items()},
            "honest": WORKERS - len(liars),
            "honest_named": {peer: found(event) for peer, event in accused.items() if peer not in liars},
            "lowest_honest_evidence": min(
                (event["evidence"] for event in scores if event["peer"] not in liars), default=0
            ),
            "scores": [
                [
                    event["round"],
                    event["peer"],
                    *(event[key] and float(f"{event[key]:.3g}") for key in FIELDS),
                ]
                for event in scores
            ],
        }


def found(accusation: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return after how many rounds of lying a peer was accused, and why; None if it was not accused."""
    return accusation and {"rounds": accusation["round"] - FROM, "why": accusation["why"]}


def run_case(group: str, seed: int, settings: Settings, file: Path) -> str:
    """Run one case, write its record, and return a line for the terminal."""
    torch.set_num_threads(1)
    record = ScoredRun(group, seed, settings).record()
    write_records(file, record, indent=None)
    named = {lie: event and event["rounds"] for lie, event in record["named"].items()}
    return f"{file.name}  {named}  honest named {len(record['honest_named'])}  {record['wall_s']} s  {record['error']}"


def missing(group: str, seed: int, settings: Settings, file: Path) -> bool:
    """Return whether a run has no record yet. Refuses a record that was made with other options."""
    record = read_records(file, dict[str, Any]())
    options = settings.case(group, seed).options(settings.more)
    check_options(record, {"options": options}, what=f"{file}: the record")
    return not record


def summary(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each kind of liar, one for the honest peers, and one for the runs that failed, if any did."""
    records, lines = [run for run in runs if not run["error"]], []
    for lie in [lie for group in GROUPS.values() for lie in group]:
        outcomes = [record["named"][lie] for record in records if lie in record["named"]]
        rounds = [outcome["rounds"] for outcome in outcomes if outcome]
        delay = f"after {statistics.median(rounds)} rounds (median), at most {max(rounds)}" if rounds else ""
        lines.append(f"{lie:8} named in {len(rounds)} of {len(outcomes)} runs {delay}")
    named, honest = sum(len(record["honest_named"]) for record in records), sum(record["honest"] for record in records)
    lines.append(f"honest   named in {named} of {honest} peer-runs")
    if failed := len(runs) - len(records):
        lines.append(f"failed   {failed} of {len(runs)} runs")
    return lines


def main() -> None:
    """Run every case that has no record yet, and print the summary of all records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder of the records")
    parser.add_argument("--recipe", choices=("sparseloco", "outerloop"), default="sparseloco")
    parser.add_argument("--groups", type=chosen_from(GROUPS), default=list(GROUPS), help=", ".join(GROUPS))
    parser.add_argument("--seeds", type=numbers, default=[0], help="seeds of weights, batches and scores; default: 0")
    parser.add_argument("--windows", type=int, default=64, help="assigned windows per score; default: 64")
    parser.add_argument("--payloads", type=float, default=7.0, help="payloads scored per round; default: 7, all")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one core; default: 1")
    parser.add_argument("options", nargs="*", help="options of outerloop train, for all runs")
    args = parser.parse_intermixed_args()
    settings = Settings(args.recipe, args.windows, args.payloads, tuple(args.options))
    files = {(group, seed): args.out / f"{group}-{seed}.json" for seed in args.seeds for group in args.groups}
    todo = [(*case, settings, file) for case, file in files.items() if missing(*case, settings, file)]
    print(f"{len(files) - len(todo)} of {len(files)} runs have a record", flush=True)
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for number, done in enumerate(as_completed([pool.submit(run_case, *case) for case in todo]), start=1):
            print(f"{number} of {len(todo)}  {done.result()}", flush=True)
    print("\n".join(summary([read_records(file, dict[str, Any]()) for file in files.values()])))


if __name__ == "__main__":
    main()
