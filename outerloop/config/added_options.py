"""Check options that a user adds with `+`, and detect those that no code reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pydoc import ErrorDuringImport, locate
from typing import Any, cast

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

SPECIAL = ("_target_", "_partial_", "_args_", "_convert_", "_recursive_")
"""Keys of a node that hydra itself reads."""


def is_about_hydra(override: Override) -> bool:
    """Return whether an override configures hydra itself, such as its launcher or search path."""
    return override.key_or_group == "hydra" or override.key_or_group.startswith(("hydra.", "hydra/"))


def is_read(config: DictConfig, base: DictConfig, key: str) -> bool:
    """Return whether any code reads the option `key` of `config`.

    A key that exists in `base`, the configuration without added options, always counts as read. A new key counts as
    read if the class or function in the `_target_` of the same node takes it as an argument, or if it is inside a
    dictionary that is passed to the `_target_` of an enclosing node. A new log sink, log.NAME, may have any name.
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
    """Return whether this path exists in `base`, even if its value is null."""
    return parts[-1] in node_at(base, parts[:-1])


def node_at(config: DictConfig, parts: Sequence[str]) -> Any:
    """Return the dictionary at this path, or an empty one if there is no dictionary at this path."""
    node = OmegaConf.select(config, ".".join(parts)) if parts else config
    return dict(node.items_ex(resolve=False)) if OmegaConf.is_dict(node) else {}


def takes(target: str, name: str) -> bool:
    """Return whether hydra reads `name` itself, or the callable at dotted path `target` takes it as an argument.

    Return True if the callable cannot be found or inspected, because instantiation then raises a clearer error.
    """
    try:
        arguments = signature(cast(Callable[..., Any], locate(target))).parameters
    except (ErrorDuringImport, TypeError, ValueError):
        return True
    return name in (*SPECIAL, *arguments) or any(
        argument.kind is Parameter.VAR_KEYWORD for argument in arguments.values()
    )
