"""Find the yaml files of the configuration: their folder and the choices in it. Imports neither hydra nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import outerloop


def config_dir() -> Path:
    """Return the folder of the yaml files: inside the installed package, or next to it in a checkout."""
    package = Path(outerloop.__file__).parent
    return next(path for path in (package / "configs", package.parent / "configs") if path.is_dir())


def choices_in(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Return config group -> its choices, over all these folders."""
    choices: dict[str, set[str]] = {}
    for root in folders:
        for group in (path for path in root.iterdir() if path.is_dir()):
            choices.setdefault(group.name, set()).update(file.stem for file in group.glob("*.yaml"))
    return {group: sorted(names) for group, names in sorted(choices.items()) if names}
