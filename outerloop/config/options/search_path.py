"""Find the yaml files of the configuration in outerloop, in user folders and in other packages, without hydra."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import outerloop
from outerloop.types import UserError

ENVIRONMENT = "OUTERLOOP_CONFIG_PATH"
"""Environment variable that lists folders of yaml files, separated by colons."""
LOCAL = Path("conf")
"""Subfolder of the current folder that is searched for yaml files."""
ENTRY_POINTS = "outerloop.configs"
"""Entry-point group for packages that provide yaml files. The value of each entry is the name of such a package."""


def config_dir() -> Path:
    """Return the folder of outerloop's yaml files: in the installed package, or next to the package in a checkout."""
    package = Path(outerloop.__file__).parent
    return next(path for path in (package / "configs", package.parent / "configs") if path.is_dir())


def user_folders() -> list[Path]:
    """Return the folders outside outerloop that are always searched: conf/, $OUTERLOOP_CONFIG_PATH, other packages.

    Raises UserError if $OUTERLOOP_CONFIG_PATH or an entry point names a folder or package that does not exist.
    """
    listed = [Path(entry) for entry in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if entry]
    for folder in listed:
        if not folder.is_dir():
            raise UserError(f"{ENVIRONMENT}={folder} is not a folder: set it to a folder with recipe/mine.yaml")
    local = [LOCAL] if LOCAL.is_dir() else []
    packages = [package_folder(name) for name in packages_with_configs()]
    return [folder.absolute() for folder in [*local, *listed, *packages]]


@cache
def packages_with_configs() -> list[str]:
    """Return the names of the installed packages that provide yaml files."""
    return [entry.value for entry in entry_points(group=ENTRY_POINTS)]


def package_folder(name: str) -> Path:
    """Return the folder of a package without importing it. Raises UserError if it is not installed."""
    try:
        spec = find_spec(name)
    except ImportError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"entry point {name} in group {ENTRY_POINTS} does not name an installed package: install it")
    return Path(next(iter(spec.submodule_search_locations)))


def choices_in(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Return a mapping from config group to its choices, collected from all these folders."""
    choices: dict[str, set[str]] = {}
    for root in folders:
        for group in (path for path in root.iterdir() if path.is_dir()):
            choices.setdefault(group.name, set()).update(file.stem for file in group.glob("*.yaml"))
    return {group: sorted(names) for group, names in sorted(choices.items()) if names}
