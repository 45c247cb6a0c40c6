"""Store all changing state on disk: write it atomically, verify it when reading, keep the newest generations.

    checkpoints/step-00000300/worker-0.pt      one worker's complete state after inner step 300
    checkpoints/step-00000300/island-0/        for a sharded island: the shards of its ranks
    checkpoints/step-00000300/worker-0.json    length and hash of worker-0.pt and of every shard file
    checkpoints/step-00000300/sealed           written last, by the parent process, after the metrics up to this step

A generation (one step folder) is valid if it is sealed and every hash matches. A kill -9 during a save leaves the
previous generation intact. A resumed run uses the newest valid generation.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from outerloop.state.damage import MISSING, file_fingerprint, fingerprint, is_valid, names_in, refuse_unreadable
from outerloop.state.durable import sync_folder

KEEP = 2
"""Default of checkpoint.keep. The second-newest generation is the fallback if the newest one is corrupt."""
COMPARED = 3
"""Number of its newest generations that each peer reports, so that the peers can choose one that most of them have.

One of the reported generations may come from an interrupted session, so other machines may not have it.
"""
STEP = re.compile(r"step-(\d{8}|[1-9]\d{8,})")
"""Name pattern of generation folders."""
TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""Name pattern of the temporary files that `write_atomically` creates."""


def save(
    run_dir: Path, step: int, worker: int, state: dict[str, Any], *, shards: Path | None = None, slow_hash: str = ""
) -> None:
    """Write one worker's state at one step, then the lengths and hashes of its file and of all files in `shards`.

    Args:
        shards: a folder of this generation whose files have already been written.
        slow_hash: hash of the slow weights in the state, in hex. Peers compare it to find a common generation.
    """
    data = pack(state)
    folder = generation(run_dir, step)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"worker-{worker}.pt", data)
    files = [file for file in shards.rglob("*") if file.is_file()] if shards else []
    shard_fingerprints = {f"{file.relative_to(folder)}": file_fingerprint(file) for file in files}
    fingerprints = fingerprint(io.BytesIO(data)) | {"shards": shard_fingerprints, "slow_hash": slow_hash}
    write_atomically(folder / f"worker-{worker}.json", json.dumps(fingerprints).encode())
    for directory in (
        *{file.parent for file in files},
        folder.parent,
        run_dir,
    ):  # the parents too, because they list the new folders
        sync_folder(directory)


def load(run_dir: Path, step: int, worker: int) -> dict[str, Any]:
    """Load one worker's state at one step."""
    return read(generation(run_dir, step) / f"worker-{worker}.pt")


def pack(state: dict[str, Any]) -> bytes:
    """Serialize a state to the bytes of a file that `read` can load."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def read(path: Path) -> dict[str, Any]:
    """Load a state from a file. The file may contain only tensors and plain values; no code in it is executed."""
    return torch.load(path, map_location="cpu", weights_only=True)


def newest_valid(run_dir: Path, workers: int) -> tuple[int | None, list[str]]:
    """Return the newest sealed step whose files are all valid, or None if there is none.

    Also return one line for each damaged worker state in a newer step; such steps are skipped. Raises UserError if a
    step cannot be read.
    """
    skipped: list[str] = []
    for step in sealed(run_dir):
        damage = [line for worker in range(workers) if (line := find_damage(run_dir, step, worker))]
        if not damage:
            return step, skipped
        skipped += damage
    return None, skipped


def resumable_steps(run_dir: Path, worker: int, *, newest: int | None) -> dict[int, str]:
    """Return a mapping from step to hash of the slow weights for the newest steps from which this worker can resume.

    Steps after `newest` are left out. If `newest` is None, the result is empty. Raises UserError if a step cannot be
    read.
    """
    steps = [step for step in sealed(run_dir) if newest is not None and step <= newest]
    valid = [step for step in steps[:COMPARED] if not find_damage(run_dir, step, worker)]
    return {step: read_fingerprints(run_dir, step, worker).get("slow_hash", "") for step in valid}


def seal(run_dir: Path, step: int, *, keep: int = KEEP) -> None:
    """Mark a step as complete, then remove all but the newest `keep` sealed generations.

    Call this once every local worker's state and the metrics up to this step are written. Sealed generations of later
    steps are removed too: a machine that joins late may hold such generations from before the run went back.
    """
    write_atomically(generation(run_dir, step) / "sealed", b"")
    for later in [other for other in sealed(run_dir) if other > step]:
        drop(run_dir, later)
    oldest = sealed(run_dir)[:keep][-1]
    for step in [other for other in generations(run_dir) if other < oldest]:
        drop(run_dir, step)


def unseal_after(run_dir: Path, step: int) -> None:
    """Mark all generations newer than `step` as incomplete, because the run goes back to `step`.

    Until they are sealed again, they do not count towards `keep`, and no run resumes from them. Their files are not
    deleted, because a worker that joins late may still read them.
    """
    for later in [other for other in sealed(run_dir) if other > step]:
        (generation(run_dir, later) / "sealed").unlink()
        sync_folder(generation(run_dir, later))


def drop(run_dir: Path, step: int) -> None:
    """Delete the generation of one step. Errors are ignored."""
    shutil.rmtree(generation(run_dir, step), ignore_errors=True)


def sealed(run_dir: Path) -> list[int]:
    """Return the steps of the sealed generations, newest first."""
    return [step for step in generations(run_dir) if "sealed" in names_in(generation(run_dir, step))]


def generations(run_dir: Path) -> list[int]:
    """Return the steps of all generations, sealed or not, newest first. Other folders are ignored."""
    found = map(STEP.fullmatch, names_in(run_dir / "checkpoints"))
    return sorted((int(name[1]) for name in found if name), reverse=True)


def find_damage(run_dir: Path, step: int, worker: int) -> str:
    """Return a line that names a damaged file of this worker at this step, or "" if all its files are valid.

    Raises UserError if a file cannot be read, because it may be undamaged.
    """
    path = generation(run_dir, step) / f"worker-{worker}.pt"
    with refuse_unreadable(path.parent):
        try:
            expected = read_fingerprints(run_dir, step, worker)
        except (*MISSING, ValueError, RecursionError):
            return f"{path} is damaged"
        expected.pop("slow_hash", None)
        shards = {path.parent / name: shard for name, shard in expected.pop("shards", {}).items()}
        damaged = [file for file, content in {path: expected, **shards}.items() if not is_valid(file, content)]
    return f"{damaged[0]} is damaged" if damaged else ""


def discard_after(run_dir: Path, step: int | None) -> None:
    """Remove all generations newer than `step` (None: all generations), because they will be written again."""
    for later in [other for other in generations(run_dir) if step is None or other > step]:
        shutil.rmtree(generation(run_dir, later))


def read_fingerprints(run_dir: Path, step: int, worker: int) -> dict[str, Any]:
    """Return the expected fingerprints of a worker's files at one step.

    Raises OSError if they cannot be read, and ValueError or RecursionError if their content is invalid.
    """
    fingerprints = json.loads((generation(run_dir, step) / f"worker-{worker}.json").read_text())
    if not isinstance(fingerprints, dict) or not isinstance(fingerprints.get("shards", {}), dict):
        raise ValueError("the content is not a map of fingerprints")
    return fingerprints


def generation(run_dir: Path, step: int) -> Path:
    """Return the path of the folder that holds the checkpoint of one step."""
    return run_dir / "checkpoints" / f"step-{step:08d}"


def remove_temporary(run_dir: Path) -> None:
    """Remove temporary files that killed processes left in a run directory. Call this before the next write."""
    for path in [path for path in run_dir.rglob(".*.tmp") if TEMPORARY.fullmatch(path.name)]:
        path.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically: even after a power failure, it is entirely old or entirely new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # it would take up space, which a caller waits for if the disk is full
        raise
    sync_folder(path.parent)
