"""Explain in one line why a configuration cannot be composed: the first invalid override and the allowed values."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from outerloop.config import added_options
from outerloop.config.options.compose import compose_config, group_choices, groups, parse_overrides
from outerloop.config.options.option_docs import all_choices
from outerloop.report.runs import flatten


def explain(overrides: Sequence[str], error: Exception) -> str:
    """Return a message that names the first invalid override and the allowed values.

    If no override is found to be invalid, return the first line of `error`.
    """
    choices = groups(overrides)
    for override in parse_overrides(overrides):
        key, chosen = override.key_or_group, override.value()
        for value in map(str, chosen if isinstance(chosen, list) else [chosen]) if key in choices else ():
            if value not in choices[key]:
                hint, allowed = close_name(value, choices[key]), ", ".join(choices[key])
                return f"{key}={value}: {key} must be one of {allowed}{f': set {key}={hint}' if hint else ''}"
    first_line = str(error).strip().splitlines()[0]
    try:
        base = compose_config(group_choices(overrides))
    except (HydraException, OmegaConfBaseException):
        return first_line
    for override in parse_overrides(overrides):
        key = override.key_or_group
        if key in choices or added_options.is_about_hydra(override):
            continue
        if override.is_add() and OmegaConf.select(base, key) is not None:
            return f"+{key}: the option already exists: set {key}={shown_value(override)}"
        if not (has_key(base, key) or override.is_add() or override.is_force_add()):
            return unknown_option(base, override)
    return first_line


def unknown_option(base: DictConfig, override: Override) -> str:
    """Return the error message for an option that does not exist in `base`, a composed configuration."""
    key, value = override.key_or_group, shown_value(override)
    parent = existing_parent(base, key)
    node, prefix = (OmegaConf.select(base, parent), f"{parent}.") if parent else (base, "")
    allowed = [str(name) for name in node if not str(name).startswith("_")]
    where = f"{parent} has" if parent else "the options are"
    message = f"{key}: no such option; {where} {', '.join(allowed) or 'no options'}"
    if option := next(same_word(base, key), ""):
        return f"{key}: no such option: set {option}={value}"
    if hint := close_name(key.removeprefix(prefix).split(".")[0], allowed):
        return f"{message}: set {prefix}{hint}={value}"
    return message + choices_with(key)


def existing_parent(base: DictConfig, key: str) -> str:
    """Return the longest prefix of a dotted key that is a dictionary in `base`, or "" if no prefix is."""
    parent = key.rpartition(".")[0]
    while parent and not OmegaConf.is_dict(OmegaConf.select(base, parent)):
        parent = parent.rpartition(".")[0]
    return parent


def has_key(base: DictConfig, key: str) -> bool:
    """Return whether an option exists in `base`, even if its value is null or must still be set (`???`)."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(base, parent) if parent else base
    if OmegaConf.is_dict(node):
        return name in map(str, node)  # `name in node` is False for an option that must still be set
    absent = object()
    return OmegaConf.select(base, key, default=absent) is not absent


def close_name(word: str, allowed: Sequence[str]) -> str:
    """Return the allowed name closest to a misspelled word, or an empty string if no name is close enough."""
    return next(iter(difflib.get_close_matches(word, allowed, n=1)), "")


def same_word(base: DictConfig, key: str) -> Iterator[str]:
    """Yield the dotted options whose last part is `key`, such as inner.lr for lr. Options of `inner` come first."""
    options = flatten(OmegaConf.to_container(base))
    found = [option for option in options if option.rpartition(".")[2] == key and "." in option]
    yield from sorted(found, key=lambda option: (not option.startswith("inner."), option.count("."), option))


def choices_with(key: str) -> str:
    """Return a hint that names the choices with the option `key`, or an empty string if no choice has it.

    Only choices of the group that is the first part of `key` are considered.
    """
    having = [c for c in all_choices() if c.group and c.group == key.split(".")[0] and c.target]
    names = [c.name for c in having if key in [option.name for option in c.options]]
    return f"; {key} is an option of {' and '.join(f'{having[0].group}={n}' for n in names)}" if names else ""


def shown_value(override: Override) -> str:
    """Return an override's value as the user typed it."""
    return (override.input_line or "").partition("=")[2]
