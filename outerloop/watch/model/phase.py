"""Determine the stage of the current round from the newest rows, and describe in words what it waits for.

    inner steps → launch → gather → commit → land

A worker is in the stage "inner steps" until it reaches the step at which the next round launches, and then in "gather";
if the schedule has a delay, it remains in "inner steps". The stages launch and land are too short to be observed.
Commit is observed only if a worker waits for it long enough to log a line. The durations of launch and land in the last
round are known from its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outerloop.watch.model.page import Stage, Strip
from outerloop.watch.model.values import finite, shown
from outerloop.watch.model.worker import Worker

STAGES = {"inner steps": "compute_s", "launch": "launch_s", "gather": "wait_s", "commit": "", "land": "land_s"}
"""Stage -> column of a "round" row that has its seconds. Those of the commit are included in those of the gather."""
COMMIT_WORDS = ("has proposed a commit", "has accepted the proposal", "must repeat an earlier proposal")
"""Phrases in the lines of a worker that waits for a decision, not for payloads (swarm/consensus/explain.py)."""

MAX_NAMED = 5
"""Maximum number of ended workers that a line names."""
GONE = {"died": "has died", "left": "has left"}
"""States in which a worker ends before the run does, in words."""


def strip(
    worker: Worker, *, sync_every: int | None, delay: int, waiting: int = 0, gone: Sequence[Worker] = ()
) -> Strip:
    """Return the stage of a worker's current round.

    Args:
        worker: the worker that is furthest behind, so that the strip shows what the others wait for.
        sync_every: H, inner steps between two launches; None if it is not fixed.
        delay: inner steps between launch and landing.
        waiting: number of other workers that wait for this round.
        gone: workers that no longer train, and for which this round may still wait.
    """
    active, words = current_stage(worker, sync_every=sync_every, delay=delay)
    if waiting and not worker.waiting:
        words = f"{waiting} peer{'s wait' if waiting > 1 else ' waits'} for {worker.name}: {words}"
    ended = [f"{other.name} {GONE[other.state]}" for other in gone if other.state in GONE]
    words = "; ".join([words, *ended[:MAX_NAMED]])
    return {
        "round": worker.round + worker.is_active,
        "stages": [stage(name, column, worker.last_round, active) for name, column in STAGES.items()],
        "text": words,
    }


def stage(name: str, column: str, last_round: Any, active: str) -> Stage:
    """Return one stage, with its duration in the last round. `active`: name of the current stage."""
    return {"name": name, "seconds": shown(finite(last_round.get(column))), "active": name == active}


def current_stage(worker: Worker, *, sync_every: int | None, delay: int) -> tuple[str, str]:
    """Return the name of the current stage, or "" if there is none, and a line that describes it."""
    if not worker.is_active:
        return "", f"{worker.name}: {worker.state}"
    if worker.state == "starting":
        return "", "waits for its workers to start"
    if worker.waiting:
        name = "commit" if any(part in worker.waiting for part in COMMIT_WORDS) else "gather"
        return name, f"waits: {worker.waiting}"
    if worker.state == "catching up":
        return "", worker.reason
    done = worker.step - worker.landed_step
    if sync_every is None:
        return "inner steps", f"{done} inner steps since the last landing"
    if done >= sync_every and not delay:
        return "gather", f"waits for the payloads of round {worker.round + 1}"
    return "inner steps", f"inner step {done} of {sync_every}"
