"""Code of the user's own: the current folder is searched where a setting names something in it, and only then.

`model._target_=mine.Net` asks for mine.py or mine/ in the current folder. Without such a name nothing is imported from
there, so that `outerloop inspect` in a folder of downloads runs none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf


def find_own_code(names: Iterable[str]) -> None:
    """Put the current folder first on the search path if one of these dotted names begins with a module in it."""
    roots = {name.partition(".")[0] for name in names} - sys.modules.keys()
    if any(map(is_here, roots)) and "" not in sys.path:
        sys.path.insert(0, "")


def is_here(module: str) -> bool:
    """Whether the current folder holds a module or a package of this name."""
    return bool(module) and (Path(f"{module}.py").is_file() or Path(module).is_dir())


def targets_of(config: DictConfig) -> list[str]:
    """Return every `_target_` of a configuration: dotted names of classes and functions."""
    return list(_targets(OmegaConf.to_container(config)))


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(target := node.get("_target_"), str):
            yield target
        node = list(node.values())
    if isinstance(node, list):
        for below in node:
            yield from _targets(below)
