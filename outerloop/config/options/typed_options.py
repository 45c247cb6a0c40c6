"""Modify, save and read the overrides that a user typed, so that another run can reuse them.

The overrides are saved as .hydra/overrides.yaml in the run directory: a list in hydra's format.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from outerloop.config.options.compose import SEARCH_PATH, parse_overrides, search_path
from outerloop.config.options.user_files import searching
from outerloop.state.checkpoint import write_atomically
from outerloop.types import UserError

FILE = Path(".hydra") / "overrides.yaml"
"""Path, relative to the run directory, of the file that contains the run's overrides."""
HYDRA_RUN_DIR = "hydra.run.dir"
PLACE = ("run_dir", HYDRA_RUN_DIR, "hydra.sweep.dir", "hydra.sweep.subdir")
"""Options that set the folder of a run. They are not reused by a run that repeats an earlier one."""


def with_run_dir(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with hydra.run.dir renamed to run_dir. Raises UserError if both are set."""
    keys = [override.key_or_group for override in parse_overrides(overrides)]
    if "run_dir" in keys and HYDRA_RUN_DIR in keys:
        raise UserError(f"run_dir and {HYDRA_RUN_DIR} both set the folder of the run: omit {HYDRA_RUN_DIR}")
    pairs = zip(overrides, keys, strict=True)
    return [f"run_dir={text.partition('=')[2]}" if key == HYDRA_RUN_DIR else text for text, key in pairs]


def with_folder(overrides: Sequence[str], folder: str | None) -> list[str]:
    """Return the overrides with `folder` added to the search path, if given. Raises UserError if it is not a folder."""
    if folder is None:
        return list(overrides)
    if not Path(folder).is_dir():
        raise UserError(f"--config-dir {folder} is not a folder: pass one with files such as recipe/mine.yaml")
    pairs = zip(overrides, parse_overrides(overrides), strict=True)
    kept = [text for text, override in pairs if override.key_or_group != SEARCH_PATH]
    return [*kept, searching([*search_path(overrides), Path(folder)])]


def read(path: Path) -> list[str]:
    """Return the overrides of an earlier run, except those that set its folder. `path`: its config.yaml or directory.

    Raises UserError if the overrides file is missing or damaged.
    """
    file = (path if path.is_dir() else path.parent) / FILE
    try:
        kept = yaml.safe_load(file.read_text())
        if not isinstance(kept, list):
            raise ValueError("not a list")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"--config {path}: {file} is missing or damaged: pass the config.yaml of a run") from error
    return [text for text in map(str, kept) if text.lstrip("+").partition("=")[0] not in PLACE]


def write(run_dir: Path, overrides: Sequence[str]) -> None:
    """Write a run's overrides to its directory."""
    (run_dir / FILE).parent.mkdir(exist_ok=True)
    write_atomically(run_dir / FILE, yaml.safe_dump(list(overrides)).encode())
