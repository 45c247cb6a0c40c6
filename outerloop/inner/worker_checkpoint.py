"""Save and load the checkpoint of one worker in the run directory: one file, and the shards of a sharded island.

    checkpoints/step-00000300/worker-0.pt     the whole state of a worker; for a sharded island, the unsharded part
    checkpoints/step-00000300/island-0/       the shards of a sharded island (distributed_checkpoint.py)

All ranks of an island must call `save`. Once all shards are written, the first rank writes the file and a record for
verifying the file and the shards (checkpoint.py). To resume, ranks that follow a leader call `load_inner`, and all
other ranks call `load`. Any number of ranks can load shards, and any number can each load a copy of an unsharded
replica.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from outerloop.core.round import RoundReport
from outerloop.inner.trainer import Trainer
from outerloop.replica.sharding import is_sharded
from outerloop.state import checkpoint

State = dict[str, Any]


def save(trainer: Trainer, rest: State, *, run_dir: Path, step: int, worker: int, slow_hash: str) -> None:
    """Save the state of a trainer, and `rest`, the rest of the worker's state. All ranks of an island must call this.

    `slow_hash`: hash of the slow weights, 16 hexadecimal digits; only the leader uses it.
    """
    outer, folder = trainer.outer, shard_folder(run_dir, step, worker)
    outer.island.run_on_followers("save", step=step)
    if not is_sharded(trainer.model):
        state = trainer.state_dict()
    elif outer.island.is_sharded:
        distributed_checkpoint().save(folder, trainer.optimizer, outer)
        state = trainer.position()
    else:
        distributed_checkpoint().save_inner(folder, trainer.optimizer, trainer.model)
        state = trainer.position() | {"outer": outer.evolved()}
    if trainer.ranks.is_leader:
        shards = folder if is_sharded(trainer.model) else None
        checkpoint.save(run_dir, step, worker, {"trainer": state, **rest}, shards=shards, slow_hash=slow_hash)


def load(trainer: Trainer, *, run_dir: Path, step: int, worker: int) -> State:
    """Restore the state of a trainer. Return the content of the file, including the `rest` passed to `save`."""
    outer, folder = trainer.outer, shard_folder(run_dir, step, worker)
    state = checkpoint.load(run_dir, step, worker)
    if not is_sharded(trainer.model):
        trainer.load_state_dict(state["trainer"])
    elif outer.island.is_sharded:
        distributed_checkpoint().load(folder, trainer.optimizer, outer)
        trainer.resume_from(state["trainer"])
    else:
        position = {key: part for key, part in state["trainer"].items() if key != "outer"}
        outer.island.run_on_followers("load", step=step, position=position)
        load_inner(trainer, position, run_dir=run_dir, step=step, worker=worker)
        outer.load_state_dict(state["trainer"]["outer"])
    return state


def load_inner(trainer: Trainer, position: State, *, run_dir: Path, step: int, worker: int) -> None:
    """Restore a rank's inner state in a gathered island: its shards, and the data `position` that the leader sends.

    Only the leader has outer state.
    """
    distributed_checkpoint().load_inner(shard_folder(run_dir, step, worker), trainer.optimizer, trainer.model)
    trainer.resume_from(position)


def distributed_checkpoint() -> ModuleType:
    """Import and return the module that saves and loads shards, only when needed: the import takes a second."""
    return import_module("outerloop.core.state.distributed_checkpoint")


def shard_folder(run_dir: Path, step: int, worker: int) -> Path:
    """Return the folder that contains an island's shards in the checkpoint of `step`."""
    return checkpoint.generation(run_dir, step) / f"island-{worker}"


def keep_payload(folder: Path, report: RoundReport, *, rounds: int) -> None:
    """Write the payload of a round that landed or failed. Delete the payloads of all but the last `rounds` rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(folder / f"{report.round.number:08d}-{report.round.fragment}.outl", report.blob)
    for path in folder.glob("*.outl"):
        if path.name < f"{max(0, report.round.number - rounds + 1):08d}":
            path.unlink()
