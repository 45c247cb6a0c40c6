"""Check the type of an option's value against the annotation or the default of the argument to which it is passed."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from inspect import signature
from pydoc import ErrorDuringImport, locate
from typing import Any, Union, cast, get_args, get_origin

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from outerloop.types import UserError

PLAIN = (bool, int, float, str, type(None))
"""Types that can be checked. An argument annotated with any other type is checked against the type of its default."""
NAMES = {type(None): "null", str: "text", bool: "true or false", int: "an integer", float: "a number", list: "a list"}


def check(config: DictConfig, defaults: Callable[[], DictConfig], override: Override) -> None:
    """Check the type of an override whose value is passed as an argument to a class or function.

    `defaults` returns the configuration with the same choices but no other overrides. If the argument's annotation
    cannot be checked, the value must have the type of the argument's default. Raises UserError if the type is wrong.
    """
    key, value = override.key_or_group, override.value()
    if override.is_sweep_override() or override.is_delete() or not isinstance(value, PLAIN):
        return
    parent, _, name = key.rpartition(".")
    if name.startswith("_"):  # keys that hydra reads, such as _target_
        return
    node = OmegaConf.select(config, parent) if parent else None
    target = node.get("_target_") if isinstance(node, DictConfig) else None
    if not isinstance(target, str):
        return
    allowed = annotated_types(target, name) or types_like(OmegaConf.select(defaults(), key))
    if allowed and not fits(value, allowed):
        default = OmegaConf.select(defaults(), key)
        names = " or ".join(NAMES.get(kind, kind.__name__) for kind in allowed)
        raise UserError(f"{key}={as_typed(value)} must be {names}: {hint(key, default, value)}")


def types_like(default: Any) -> tuple[type, ...]:
    """Return the types that a value may have to replace this default, or an empty tuple if any type is allowed."""
    if OmegaConf.is_list(default):
        return list, str, type(None)
    if type(default) is int:
        return int, float, type(None)  # a learning rate whose default is 1 may also be 0.7
    return (type(default), type(None)) if type(default) in (bool, float) else ()


def annotated_types(target: str, name: str) -> tuple[type, ...]:
    """Return the types that argument `name` of `target` accepts, or an empty tuple if they cannot be checked."""
    try:
        arguments = signature(cast(Callable[..., Any], locate(target)), eval_str=True).parameters
    except (ErrorDuringImport, NameError, TypeError, ValueError):
        return ()
    hint = arguments[name].annotation if name in arguments else None
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return tuple(members) if hint and all(member in PLAIN for member in members) else ()


def fits(value: Any, allowed: tuple[type, ...]) -> bool:
    """Return whether a value has an allowed type. An int counts as a float, but a bool does not count as a number."""
    if isinstance(value, bool):
        return bool in allowed
    return isinstance(value, allowed) or (isinstance(value, int) and float in allowed)


def as_typed(value: Any) -> str:
    """Format an option's value as it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value, default=list)


def hint(key: str, default: Any, value: Any) -> str:
    """Return what to do about an invalid value.

    Set the default; if it is null or an empty list, read the option's description; but if a list is needed and the
    value is a text, put the text into a list.
    """
    in_list = isinstance(default, list) and isinstance(value, str) and value != ""
    if not in_list and default in (None, []):
        return f"for its description, run outerloop options {key}"
    return f"set {key}={f'[{value}]' if in_list else as_typed(default)}"
