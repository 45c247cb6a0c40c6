"""Add the current folder to `sys.path` if a setting names a module in that folder.

For example, with `model._target_=mine.Net` the folder is added if it contains mine.py or mine/. Every later import then
searches the current folder first. If no setting names such a module, nothing is imported from the current folder, so
running `outerloop inspect` in a folder of downloads executes no code from that folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

LOOKS_UP = "hydra.utils.get_"
"""Prefix of the hydra functions that look up an object by its dotted name."""


def enable_user_code(names: Iterable[str]) -> None:
    """Put the current folder first in `sys.path` if it contains the top-level module of one of these dotted names."""
    roots = {name.partition(".")[0] for name in names} - sys.modules.keys()
    if any(map(is_in_current_folder, roots)) and "" not in sys.path:
        sys.path.insert(0, "")


def is_in_current_folder(module: str) -> bool:
    """Return whether the current folder contains a module or a package of this name."""
    return bool(module) and (Path(f"{module}.py").is_file() or Path(module).is_dir())


def names_in(config: DictConfig) -> list[str]:
    """Return every dotted name of a class or function in a configuration, with interpolations resolved.

    These names are the `_target_`s and the arguments of hydra's functions that look up a name, such as get_method.
    """
    return list(_names(OmegaConf.to_container(config, resolve=True)))


def _names(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        target = node.get("_target_")
        looks_up = isinstance(target, str) and target.startswith(LOOKS_UP)
        candidates = [target, *([node.get("path"), *(node.get("_args_") or [])] if looks_up else [])]
        yield from (name for name in candidates if isinstance(name, str))
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from _names(child)
