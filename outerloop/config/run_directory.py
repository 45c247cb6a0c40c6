"""Open a run directory: lock it, and determine whether its run is finished and, if not, the step to resume from.

Contents of a run directory:

    config.yaml  metrics.jsonl  summary.json  loss.png  hf/  checkpoints/  workers/<i>/log.txt  workers/<i>/payloads/
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig, OmegaConf

from outerloop.config.options.resumed_settings import refuse_other_run
from outerloop.config.options.saved_settings import saved_settings
from outerloop.report.runs import DIED, read_results
from outerloop.state import checkpoint
from outerloop.state.durable import make_folder
from outerloop.state.file_lock import lock_file
from outerloop.state.replaced_folder import recover_folder
from outerloop.types import UserError

ACCESS = "identity.access"
"""Name of a worker's folder of invited peers: FOLDER in swarm/access/register_files.py, which imports cryptography."""
LOCK = ".lock"
"""Name of the lock file of a run directory."""
MODEL = "hf"
"""Name of the folder of the exported model."""
EXPORTED = ".model"
"""Name of the file that contains the hash of the weights that were exported last."""
REMEDY = "set run_dir=, or for a sweep hydra.sweep.dir=, to a folder in which you can write"
"""Default advice in the UserError of `refuse_unusable`: what the user should set instead."""
FINAL_EVENTS = ("done", "left", "error", "died")
"""Events that end a run. Rows of metrics.jsonl with these events are dropped when the run is resumed."""


@dataclass(frozen=True)
class RunDir:
    """The locked directory of one run.

    `resume_step`: inner step of the checkpoint to resume from, or None if the run starts from scratch or is finished.
    `notes`: messages for the user.
    """

    path: Path
    resume_step: int | None
    finished: bool
    notes: list[str]
    lock: IO[str]

    def close(self) -> None:
        """Release the lock on the directory."""
        unlock(self.lock)


@contextmanager
def refuse_unusable(remedy: str = REMEDY) -> Iterator[None]:
    """Raise UserError in place of an OSError, which means that the folder of a run cannot be read or written."""
    try:
        yield
    except OSError as error:
        what = error.filename or "the folder of the run"
        raise UserError(f"{what} cannot be used ({error.strerror or error}): {remedy}") from error


@refuse_unusable()
def new_folder(what: str) -> Path:
    """Create and return the folder runs/<time>-<what>, with -2, -3, ... appended if that name is taken.

    Raises UserError if it cannot be created.
    """
    name = Path("runs") / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{what}"
    name.parent.mkdir(exist_ok=True)
    for path in chain([name], (Path(f"{name}-{number}") for number in count(2))):
        with suppress(FileExistsError):
            path.mkdir()
            break
    return path


@refuse_unusable()
def open_run(config: DictConfig) -> RunDir:
    """Check the run directory, lock it and write config.yaml to it.

    Raises UserError, without changing the directory, if it contains a run with different settings, or files but no run.
    Raises UserError if it cannot be written.
    """
    path = Path(config.run_dir) if config.run_dir else new_folder(config.recipe)
    resumed = (path / "config.yaml").exists()
    earlier = refuse_other_run(path, config) if resumed else config
    if not resumed and path.exists() and not (path.is_dir() and all(map(may_precede_run, path.rglob("*")))):
        raise UserError(f"run_dir={path} exists but does not contain a run: set run_dir= to a new folder")
    make_folder(path)
    lock = lock_directory(path)
    try:
        return claim(path, config, earlier, lock, resumed=resumed)
    except BaseException:
        unlock(lock)
        raise


@refuse_unusable()
def finished_run(config: DictConfig) -> RunDir | None:
    """Return the run directory, locked, if its run is finished; None if there is no run, or training must continue.

    This needs no data: with corpus.share, the data of the saved run is not compared, because the hash of this machine's
    data is not known yet. Raises UserError if another process uses the directory, if it contains a run with different
    settings, or if it cannot be written.
    """
    path = Path(config.run_dir or "")
    if not config.run_dir or not (path / "config.yaml").exists():
        return None
    run, lock = None, lock_directory(path)
    try:
        compared = config.copy()
        if config.corpus.share is not None:
            compared.data = saved_settings(path).data
        earlier = refuse_other_run(path, compared)
        if is_finished(path, config, earlier):
            run = claim(path, config, earlier, lock, resumed=True)
    finally:
        if run is None:
            unlock(lock)
    return run


def is_finished(path: Path, config: DictConfig, earlier: DictConfig) -> bool:
    """Return whether a run directory contains a finished run that has all rounds of `config`.

    A run without a valid summary (`read_results`) is not finished: it resumes and writes one. Neither is a run without
    its model, unless a new export would need other machines.
    """
    has_model = (path / MODEL).exists() or "initial_peers" in config.exchange
    return read_results(path) is not None and has_model and config.rounds <= earlier.rounds


def claim(path: Path, config: DictConfig, earlier: DictConfig, lock: IO[str], *, resumed: bool) -> RunDir:
    """Write config.yaml to a locked run directory, unless its run is finished. Return the directory as a RunDir.

    `earlier`: the settings returned by `with_saved_rounds`. `resumed`: whether the directory already contained a run.
    If the run resumes from a checkpoint, `config.init_from` is set to the saved value.
    Raises UserError if its checkpoints cannot be read, or if all are damaged.
    """
    checkpoint.remove_temporary(path)
    recover_folder(path / MODEL)
    (path / DIED).unlink(missing_ok=True)
    if is_finished(path, config, earlier):
        return RunDir(path, None, True, [], lock)
    step, damaged = checkpoint.newest_valid(path, config.workers) if resumed else (None, [])
    if damaged and step is None:
        raise UserError(
            f"{damaged[0]}, and run_dir={path} contains no complete checkpoint: restore one from a copy, or move"
            f" {path / 'checkpoints'} elsewhere to start without a checkpoint"
        )
    (path / "summary.json").unlink(missing_ok=True)
    if not (path / MODEL).exists():
        (path / EXPORTED).unlink(missing_ok=True)
    notes = [f"{line}: skipped" for line in damaged]
    if step is not None:
        notes += keep_init_from(path, config)
    checkpoint.write_atomically(path / "config.yaml", OmegaConf.to_yaml(config, resolve=True).encode())
    if config.rounds > earlier.rounds:
        notes.append(
            f"extended from {earlier.rounds} to {config.rounds} rounds; learning rates now follow the longer run"
        )
    return RunDir(path, step, False, notes, lock)


def keep_init_from(path: Path, config: DictConfig) -> list[str]:
    """Set `config.init_from` to the value with which the run was started. Return a note if another value was set."""
    typed, config.init_from = config.init_from, saved_settings(path).get("init_from")
    if typed in (None, config.init_from):
        return []
    why = "the run continues from its checkpoint: set another run_dir= to start from these weights"
    return [f"init_from={typed} is not used, because {why}"]


def identity_file(path: Path, index: int) -> Path:
    """Return the absolute path of a local worker's key file."""
    return (path / "workers" / str(index) / "identity.key").absolute()


def worker_keys(run_dir: Path) -> list[Path]:
    """Return the key files of all workers in a run directory. Copies of their folders, like 0.bak, are skipped."""
    first = identity_file(run_dir, 0)
    return sorted(key for key in first.parent.parent.glob(f"*/{first.name}") if key.parent.name.isdecimal())


def may_precede_run(path: Path) -> bool:
    """Return whether a file may exist in a run directory before the run has started.

    Such files are keys created by `outerloop doctor`, the admission of an invited peer, files that hydra writes for a
    sweep job, the record (DIED) of a sweep job that failed before its run started, and the lock file of a process that
    could not write config.yaml.
    """
    return path.is_dir() or path.name in ("identity.key", DIED, LOCK) or path.parent.name in (".hydra", ACCESS)


def lock_directory(path: Path) -> IO[str]:
    """Lock a run directory and return the open lock file. `unlock` or the end of the process releases the lock.

    Raises UserError if another process, or an outer loop of this process, holds the lock, or if the file system has no
    locks.
    """
    lock = (path / LOCK).open("a")
    try:
        lock_file(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(
            f"run_dir={path} is in use by another process, or by an outer loop of this process that has not left its"
            " run: set another run_dir=, or call close() or abort() on that outer loop"
        ) from error
    return lock


def unlock(lock: IO[str]) -> None:
    """Release the lock taken by `lock_directory`.

    The lock is released explicitly, because a forked process may still hold the file open.
    """
    fcntl.flock(lock, fcntl.LOCK_UN)
    lock.close()


def rows_until(path: Path, step: int | None) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl up to inner step `step`, or no rows if `step` is None.

    Rows that report the end of the run are omitted. Reading stops at the first line that is not valid JSON, such as a
    truncated line.
    """
    file = path / "metrics.jsonl"
    if step is None or not file.exists():
        return []
    rows = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return [row for row in rows if row["step"] <= step and row["event"] not in FINAL_EVENTS]
