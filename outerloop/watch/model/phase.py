"""Determine the stage of the round at hand from the newest rows, and say in words what it waits for.

    inner steps → launch → gather → commit → land

Rows state when a round landed and the inner steps since, so "inner steps" and "gather" are told apart by comparing the
step with the one at which the next round launches. Launch and land are too short to be seen, and commit is seen only
if a worker waits for it for so long that it logs a line; the seconds of the last round show all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outerloop.watch.model.page import Stage, Strip
from outerloop.watch.model.values import finite, shown
from outerloop.watch.model.worker import Worker

STAGES = {"inner steps": "compute_s", "launch": "launch_s", "gather": "wait_s", "commit": "", "land": "land_s"}
"""Stage -> column of a "round" row with its seconds; the time of the commit is part of that of the gather."""
COMMIT_WORDS = ("has proposed a commit", "has accepted the proposal", "must repeat an earlier proposal")
"""Parts of the lines with which a worker waits for a decision, not for payloads (swarm/consensus/explain.py)."""

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
    words = "; ".join([words, *(f"{other.name} {GONE[other.state]}" for other in gone if other.state in GONE)])
    return {
        "round": worker.round + worker.is_active,
        "stages": [stage(name, column, worker.last_round, active) for name, column in STAGES.items()],
        "text": words,
    }


def stage(name: str, column: str, last_round: Any, active: str) -> Stage:
    """Return one stage, with its seconds in the last round."""
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
