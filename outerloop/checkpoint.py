"""Everything that evolves, on disk: atomically written, verified when read, the last good ones kept.

    checkpoints/step-00000300/worker-0.pt      one worker's whole state after inner step 300
    checkpoints/step-00000300/worker-0.json    its length and hash
    checkpoints/step-00000300/sealed           written last, by the parent, once the metrics up to here are on disk

A generation (one step folder) counts when it is sealed and every hash is right; a kill -9 during a save leaves the
previous generation whole. Resuming takes the newest generation that counts.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

KEEP = 2
"""Generations kept; the second is what a corrupt first falls back to."""


def save(run_dir: Path, step: int, worker: int, state: dict[str, Any]) -> None:
    """Write one worker's state of one step: data, then its length and hash."""
    data = packed(state)
    folder = generation(run_dir, step)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"worker-{worker}.pt", data)
    write_atomically(folder / f"worker-{worker}.json", json.dumps(fingerprint(data)).encode())


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


def newest_good(run_dir: Path, workers: int) -> tuple[int | None, list[str]]:
    """The newest step whose files are all right (None: there is none), and a line for each damaged one passed over."""
    passed_over: list[str] = []
    for step in sealed(run_dir):
        damage = [line for worker in range(workers) if (line := damage_of(run_dir, step, worker))]
        if not damage:
            return step, passed_over
        passed_over += damage
    return None, passed_over


def seal(run_dir: Path, step: int) -> None:
    """Every local worker's state of this step is written, and so is what was measured up to it. Makes room, too."""
    write_atomically(generation(run_dir, step) / "sealed", b"")
    oldest = sealed(run_dir)[:KEEP][-1]
    for folder in (run_dir / "checkpoints").glob("step-*"):
        if int(folder.name.removeprefix("step-")) < oldest:
            shutil.rmtree(folder, ignore_errors=True)


def drop(run_dir: Path, step: int) -> None:
    """Remove a generation that will not be sealed."""
    shutil.rmtree(generation(run_dir, step), ignore_errors=True)


def sealed(run_dir: Path) -> list[int]:
    """Steps of the sealed generations, newest first."""
    folders = [path.parent for path in (run_dir / "checkpoints").glob("step-*/sealed")]
    return sorted((int(folder.name.removeprefix("step-")) for folder in folders), reverse=True)


def damage_of(run_dir: Path, step: int, worker: int) -> str:
    """Why one worker's file of one step cannot be used, or nothing."""
    path = generation(run_dir, step) / f"worker-{worker}.pt"
    try:
        data = path.read_bytes()
        if json.loads(path.with_suffix(".json").read_text()) == fingerprint(data):
            return ""
    except (OSError, ValueError):
        pass
    return f"{path} is damaged"


def discard_after(run_dir: Path, step: int | None) -> None:
    """Remove the generations newer than `step` (None: all), whole or not: they are about to be written again."""
    for folder in (run_dir / "checkpoints").glob("step-*"):
        if step is None or int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)


def fingerprint(data: bytes) -> dict[str, Any]:
    """What must agree for a file to be whole."""
    return {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}


def generation(run_dir: Path, step: int) -> Path:
    """The folder of one step."""
    return run_dir / "checkpoints" / f"step-{step:08d}"


def write_atomically(path: Path, data: bytes) -> None:
    """The whole file or the file that was there before; survives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
