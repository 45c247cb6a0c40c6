"""Everything that evolves, on disk: atomically written, verified when read, the last good ones kept.

    checkpoints/step-00000300/worker-0.pt      one worker's whole state after inner step 300
    checkpoints/step-00000300/island-0/        of an island of shards: those of its ranks
    checkpoints/step-00000300/worker-0.json    length and hash of that file and of every shard file
    checkpoints/step-00000300/sealed           written last, by the parent, once the metrics up to here are on disk

A generation (one step folder) counts when it is sealed and every hash is right; a kill -9 during a save leaves the
previous generation whole. Resuming takes the newest generation that counts.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash
from torch import Tensor

from outerloop.state.durable import sync_folder

KEEP = 2
"""Generations kept; the second is what a corrupt first falls back to."""
PIECE_BYTES = 1 << 20
"""A file is read in pieces of this size to be hashed: the shards of an island need not fit in memory."""
STEP = re.compile(r"step-(\d{8}|[1-9]\d{8,})")
"""Names of the folders of generations."""
TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""Names of files that `write_atomically` has begun."""


def save(
    run_dir: Path, step: int, worker: int, state: dict[str, Any], *, shards: Path | None = None, slow_hash: str = ""
) -> None:
    """Write one worker's state of one step: data, then its length and hash, and those of the files in `shards`.

    Args:
        shards: a folder of this generation that is written already.
        slow_hash: of the slow weights in it, in hex, by which peers see whether they hold the same generation.
    """
    data = packed(state)
    folder = generation(run_dir, step)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"worker-{worker}.pt", data)
    files = [file for file in shards.rglob("*") if file.is_file()] if shards else []
    of_shards = {f"{file.relative_to(folder)}": fingerprint_of(file) for file in files}
    vouched = fingerprint(io.BytesIO(data)) | {"shards": of_shards, "slow_hash": slow_hash}
    write_atomically(folder / f"worker-{worker}.json", json.dumps(vouched).encode())
    for holder in (*{file.parent for file in files}, folder.parent, run_dir):  # the folders are new, so are their names
        sync_folder(holder)


def load(run_dir: Path, step: int, worker: int) -> dict[str, Any]:
    """One worker's state."""
    return read(generation(run_dir, step) / f"worker-{worker}.pt")


def packed(state: dict[str, Any]) -> bytes:
    """A state as `read` takes it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def read(path: Path) -> dict[str, Any]:
    """The state in a file. Tensors and plain values only: nothing in the file is executed."""
    return torch.load(path, map_location="cpu", weights_only=True)


def on_device(state: Any, device: torch.device) -> Any:
    """Every tensor of nested dictionaries, lists and tuples, moved to a device."""
    if isinstance(state, Tensor):
        return state.to(device)
    if isinstance(state, dict):
        return {key: on_device(value, device) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(on_device(value, device) for value in state)
    return state


def whole_parts(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an outer loop with every part but the slow weights as a tuple of one.

    torch.distributed.checkpoint loads what the state that it loads into has keys for, and a new outer loop has no
    residual, no momentum and no rounds in flight. A tuple is one value to it, saved and loaded whole.
    """
    as_it_is = ("slow", "inner_step", "samples")
    return {key: part if key in as_it_is else (part,) for key, part in state.items()}


def opened(state: dict[str, Any]) -> dict[str, Any]:
    """Return what was given to `whole_parts`; a state that was never given to it, as it is."""
    return {key: part[0] if isinstance(part, tuple) else part for key, part in state.items()}


def newest_good(run_dir: Path, workers: int) -> tuple[int | None, list[str]]:
    """The newest step whose files are all right (None: there is none), and a line for each damaged one passed over."""
    passed_over: list[str] = []
    for step in sealed(run_dir):
        damage = [line for worker in range(workers) if (line := damage_of(run_dir, step, worker))]
        if not damage:
            return step, passed_over
        passed_over += damage
    return None, passed_over


def held(run_dir: Path, worker: int, *, newest: int | None) -> dict[int, str]:
    """Return the steps up to `newest` that one worker can go on from, and the hash of its slow weights at each."""
    steps = [step for step in sealed(run_dir) if newest is not None and step <= newest]
    whole = [step for step in steps[:KEEP] if not damage_of(run_dir, step, worker)]
    return {step: vouched(run_dir, step, worker).get("slow_hash", "") for step in whole}


def seal(run_dir: Path, step: int) -> None:
    """Every local worker's state of this step is written, and so is what was measured up to it. Makes room, too.

    Sealed generations of later steps go: they are from before the run went back.
    """
    write_atomically(generation(run_dir, step) / "sealed", b"")
    for later in [one for one in sealed(run_dir) if one > step]:
        drop(run_dir, later)
    oldest = sealed(run_dir)[:KEEP][-1]
    for step in [one for one in generations(run_dir) if one < oldest]:
        drop(run_dir, step)


def drop(run_dir: Path, step: int) -> None:
    """Remove a generation."""
    shutil.rmtree(generation(run_dir, step), ignore_errors=True)


def sealed(run_dir: Path) -> list[int]:
    """Steps of the sealed generations, newest first."""
    return [step for step in generations(run_dir) if (generation(run_dir, step) / "sealed").exists()]


def generations(run_dir: Path) -> list[int]:
    """Return the steps of all generations, newest first. What else lies among them is not looked at."""
    found = (STEP.fullmatch(folder.name) for folder in (run_dir / "checkpoints").glob("step-*"))
    return sorted((int(name[1]) for name in found if name), reverse=True)


def damage_of(run_dir: Path, step: int, worker: int) -> str:
    """Which of one worker's files of one step cannot be used, or nothing."""
    path = generation(run_dir, step) / f"worker-{worker}.pt"
    try:
        own = vouched(run_dir, step, worker)
    except (OSError, ValueError, RecursionError):
        return f"{path} is damaged"
    own.pop("slow_hash", None)
    shards = {path.parent / name: wanted for name, wanted in own.pop("shards", {}).items()}
    damaged = [file for file, wanted in {path: own, **shards}.items() if not is_whole(file, wanted)]
    return f"{damaged[0]} is damaged" if damaged else ""


def is_whole(path: Path, wanted: dict[str, Any]) -> bool:
    """Whether a file has this fingerprint."""
    try:
        return fingerprint_of(path) == wanted
    except (OSError, ValueError):  # ValueError: no file has such a name
        return False


def discard_after(run_dir: Path, step: int | None) -> None:
    """Remove the generations newer than `step` (None: all), whole or not: they are about to be written again."""
    for later in [one for one in generations(run_dir) if step is None or one > step]:
        shutil.rmtree(generation(run_dir, later))


def fingerprint_of(path: Path) -> dict[str, Any]:
    """The fingerprint of a file. Raises OSError."""
    with path.open("rb") as file:
        return fingerprint(file)


def fingerprint(file: BinaryIO) -> dict[str, Any]:
    """What must agree for a file to be whole."""
    size, content = 0, xxhash.xxh3_128()
    while piece := file.read(PIECE_BYTES):
        size += len(piece)
        content.update(piece)
    return {"bytes": size, "xxh3_128": content.hexdigest()}


def vouching(run_dir: Path, step: int, worker: int) -> Path:
    """The file that says what a worker's file of one step must be."""
    return generation(run_dir, step) / f"worker-{worker}.json"


def vouched(run_dir: Path, step: int, worker: int) -> dict[str, Any]:
    """Return the content of the vouching file. Raises OSError, and ValueError or RecursionError for bad content."""
    told = json.loads(vouching(run_dir, step, worker).read_text())
    if not isinstance(told, dict) or not isinstance(told.get("shards", {}), dict):
        raise ValueError("it is no map of fingerprints")
    return told


def generation(run_dir: Path, step: int) -> Path:
    """The folder of one step."""
    return run_dir / "checkpoints" / f"step-{step:08d}"


def remove_temporary(run_dir: Path) -> None:
    """Remove the files that killed writers have left in a run directory, before anybody writes there again."""
    for path in [path for path in run_dir.rglob(".*.tmp") if TEMPORARY.fullmatch(path.name)]:
        path.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """The whole file or the file that was there before; survives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a disk that is full it would take the space that is waited for
        raise
    sync_folder(path.parent)
