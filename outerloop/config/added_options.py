"""Check options added with `+`. An option is accepted if a constructor takes it, and refused if no code reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pydoc import ErrorDuringImport, locate
from typing import Any, cast

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

SPECIAL = ("_target_", "_partial_", "_args_", "_convert_", "_recursive_")
"""Keys next to `_target_` that hydra itself reads."""


def is_about_hydra(override: Override) -> bool:
    """Return whether an override configures hydra itself: its launcher, its folders, its search path."""
    return override.key_or_group == "hydra" or override.key_or_group.startswith(("hydra.", "hydra/"))


def is_read(config: DictConfig, base: DictConfig, key: str) -> bool:
    """Return whether any code reads `key` of `config`.

    Every key that exists in `base`, the configuration without added options, counts as read. A new key must be an
    argument of the `_target_` next to it, or be inside a dictionary that is an argument of a `_target_` at a higher
    level. A new sink, log.NAME, may have any name.
    """
    parts = key.split(".")
    new = next((i for i in range(len(parts)) if not has(base, parts[: i + 1])), None)
    if new is None:
        return True
    targets = [node_at(config, parts[:i]).get("_target_") for i in range(len(parts))]
    refused = [i for i in range(new, len(parts)) if targets[i] and not takes(targets[i], parts[i])]
    is_sink = parts[0] == "log" and "_target_" in node_at(config, parts[:2])
    return (is_sink or any(targets[: new + 1])) and not refused


def has(base: DictConfig, parts: Sequence[str]) -> bool:
    """Return whether this path exists in `base`, whatever its value."""
    return parts[-1] in node_at(base, parts[:-1])


def node_at(config: DictConfig, parts: Sequence[str]) -> Any:
    """Return the dictionary at this path; an empty one if the path does not exist or is not a dictionary."""
    node = OmegaConf.select(config, ".".join(parts)) if parts else config
    return dict(node.items_ex(resolve=False)) if OmegaConf.is_dict(node) else {}


def takes(target: str, name: str) -> bool:
    """Return whether the callable with dotted path `target` has an argument `name`, or hydra itself reads that name.

    Return True if there is no such callable, because instantiation then raises a better error.
    """
    try:
        arguments = signature(cast(Callable[..., Any], locate(target))).parameters
    except (ErrorDuringImport, TypeError, ValueError):
        return True
    return name in (*SPECIAL, *arguments) or any(
        argument.kind is Parameter.VAR_KEYWORD for argument in arguments.values()
    )
