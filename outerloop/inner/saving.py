"""One worker's state in its run directory: a file of its own, and the shards of an island's ranks beside it.

    checkpoints/step-00000300/worker-0.pt     all of a worker; of an island of shards what is equal on all its ranks
    checkpoints/step-00000300/island-0/       its shards (resharding.py)

All ranks of an island call both functions; its first rank writes the file. Shards come back on any number of ranks, a
whole replica on any number of copies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outerloop import checkpoint
from outerloop.inner.trainer import Trainer
from outerloop.island import is_cut

State = dict[str, Any]


def save(trainer: Trainer, rest: State, *, run_dir: Path, step: int, worker: int) -> None:
    """Write the state of a trainer, and what else a worker has."""
    if is_cut(trainer.model):
        from outerloop import resharding  # here: what it imports takes a second

        resharding.save(shards_of(run_dir, step, worker), trainer.optimizer, trainer.outer)
        state = trainer.position()
    else:
        state = trainer.state_dict()
    if trainer.ranks.leads:
        checkpoint.save(run_dir, step, worker, {"trainer": state, **rest})


def load(trainer: Trainer, *, run_dir: Path, step: int, worker: int) -> State:
    """Put a trainer where `save` was called; what else was written."""
    state = checkpoint.load(run_dir, step, worker)
    if "outer" in state["trainer"]:
        trainer.load_state_dict(state["trainer"])
    else:
        from outerloop import resharding

        resharding.load(shards_of(run_dir, step, worker), trainer.optimizer, trainer.outer)
        trainer.go_on_from(state["trainer"])
    return state


def shards_of(run_dir: Path, step: int, worker: int) -> Path:
    """The folder of an island's shards."""
    return checkpoint.generation(run_dir, step) / f"island-{worker}"
