"""What a run directory is: whose it is, whether the run is finished, where to go on.

config.yaml  metrics.jsonl  summary.json  loss.png  hf/  checkpoints/  workers/<i>/log.txt  workers/<i>/payloads/
"""

from __future__ import annotations

import fcntl
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from outerloop.config.peer_check import first_difference, shown
from outerloop.config.renamed_parts import with_new_names
from outerloop.report.runs import DIED, flat
from outerloop.state import checkpoint
from outerloop.state.durable import make_folder
from outerloop.types import UserError

MAY_DIFFER = (
    "run_dir",
    "log",
    "threads",
    "log_every",
    "round_timeout_s",
    "max_failed_rounds",
    "keep_payload_rounds",
    "exchange",
    "island",
    "state_device",
    "hydra",
)
"""Settings that do not change what is trained; a run may be resumed with others."""
MUST_MATCH = (
    *(f"exchange.{key}" for key in ("_target_", "peers", "group", "together", "seed", "pairing")),
    "island.kind",
)
"""... but of the exchange only where and how the peers are reached, of an island only how many ranks it has."""
OLDER = {"clip": "none"}
"""Settings that older runs had without saying so."""

PEERS = "exchange.peers"

LAST_WORDS = ("done", "left", "error", "died")
"""Rows of an end that was none, because the run goes on."""


@dataclass(frozen=True)
class RunDir:
    """One run's folder, locked. `resume_step` is None for a fresh run; `notes` are for the user."""

    path: Path
    resume_step: int | None
    finished: bool
    notes: list[str]
    lock: IO[str]

    def close(self) -> None:
        """Give the folder free."""
        free(self.lock)


def open_run(config: DictConfig) -> RunDir:
    """Look, then claim: lock the folder and write config.yaml. Raises UserError, untouched, if it is not ours."""
    path = Path(config.run_dir or Path("runs") / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{config.recipe}")
    resumed = (path / "config.yaml").exists()
    if resumed:
        refuse_other_settings(path, comparable(config), reform=bool(config.exchange.get("reform")))
    elif path.exists() and not (path.is_dir() and all(map(may_come_first, path.rglob("*")))):
        raise UserError(f"run_dir={path} exists and is not a run: type run_dir= with the name of a new folder")
    make_folder(path)
    lock = locked(path)
    checkpoint.remove_temporary(path)
    if (path / "summary.json").exists():
        return RunDir(path, None, True, [], lock)
    (path / DIED).unlink(missing_ok=True)
    checkpoint.write_atomically(path / "config.yaml", OmegaConf.to_yaml(config, resolve=True).encode())
    step, damaged = checkpoint.newest_good(path, config.workers) if resumed else (None, [])
    notes = [f"{line}: passed over" for line in damaged]
    if damaged and step is None:
        notes.append("no whole checkpoint is left: starting from the beginning")
    return RunDir(path, step, False, notes, lock)


def identity_file(path: Path, index: int) -> Path:
    """Where the key of a local worker lies, absolute."""
    return (path / "workers" / str(index) / "identity.key").absolute()


def may_come_first(path: Path) -> bool:
    """Whether this may lie in the folder of a run that has not begun.

    Keys do, when doctor showed their ids, and what a job of a sweep says that died before it.
    """
    return path.is_dir() or path.name in ("identity.key", DIED)


def locked(path: Path) -> IO[str]:
    """The open lock file of a run, freed with the process at the latest. Raises UserError when another one has it."""
    lock = (path / ".lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UserError(f"run_dir={path} is being trained by another process: type another run_dir=") from error
    return lock


def free(lock: IO[str]) -> None:
    """The opposite of `locked`: by name, since a process forked meanwhile may hold the file open as well."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    lock.close()


def comparable(config: DictConfig | ListConfig) -> dict[str, Any]:
    """The settings that say what is trained, flat."""
    return {
        key: value
        for key, value in flat(OmegaConf.to_container(config, resolve=True)).items()
        if key.split(".")[0] not in MAY_DIFFER or key in MUST_MATCH
    }


def refuse_other_settings(path: Path, settings: dict[str, Any], *, reform: bool = False) -> None:
    """Raises UserError naming the first setting that differs from those the folder was made with.

    `reform`: the number of peers may, as machines were lost for good.
    """
    theirs = OLDER | with_new_names(comparable(OmegaConf.load(path / "config.yaml")))
    if reform:
        theirs[PEERS] = settings.get(PEERS)
    if (key := first_difference(settings, theirs)) is not None:
        there, here = shown(theirs, key), shown(settings, key)
        lost = ", exchange.reform=true if machines are lost for good," if key == PEERS else ""
        raise UserError(
            f"run_dir={path} belongs to another configuration: {key} is {there} there and {here} here:"
            f" type {key}={there}{lost} or another run_dir="
        )


def rows_until(path: Path, step: int | None) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl up to an inner step; a last line cut short is dropped. None: no row."""
    file = path / "metrics.jsonl"
    if step is None or not file.exists():
        return []
    rows = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return [row for row in rows if row["step"] <= step and row["event"] not in LAST_WORDS]
