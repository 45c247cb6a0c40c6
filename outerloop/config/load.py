"""Load one resolved configuration from the command line, or raise an error that explains what is wrong.

Hydra composes configs/train.yaml with its groups. When it cannot, `explain` finds the first override at fault and
reports what is allowed there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from outerloop.config import added_options
from outerloop.config.search_path import choices_in, config_dir
from outerloop.config.user_code import enable_user_code, names_in
from outerloop.types import UserError

POSITIVE = (
    "workers",
    "rounds",
    "log_every",
    "max_failed_rounds",
    "inner.batch",
    "inner.seq_len",
    "inner.accumulate",
    "eval.sequences",
)
WORDS = {"merge_local": ("carry",)}
"""Numeric options that also accept these strings."""
NOT_NEGATIVE = ("seed", "eval.every", "checkpoint.every", "keep_payload_rounds", "inner.warmup_steps")


def groups(overrides: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return config group -> its choices, including those in the folders of `hydra.searchpath` if it is overridden."""
    return choices_in([config_dir(), *search_path(overrides)])


def search_path(overrides: Sequence[str]) -> list[Path]:
    """Return the folders of `hydra.searchpath` (file://FOLDER or pkg://PACKAGE). Raises UserError if one is missing."""
    entries = [
        override.value() for override in parse_overrides(overrides) if override.key_or_group == "hydra.searchpath"
    ]
    return [search_path_folder(str(entry)) for listed in entries if isinstance(listed, list) for entry in listed]


def search_path_folder(entry: str) -> Path:
    """Return the folder that one entry of the search path names. Raises UserError if it is not a folder."""
    try:
        package = entry.removeprefix("pkg://")
        enable_user_code([package] if package != entry else [])
        folder = Path(str(files(package)) if package != entry else entry.removeprefix("file://"))
    except ImportError:
        folder = Path(entry)
    if not folder.is_dir():
        raise UserError(f"hydra.searchpath={entry} is not a folder: set 'hydra.searchpath=[file://FOLDER]'")
    return folder


def load(overrides: Sequence[str]) -> DictConfig:
    """Return the checked configuration for these overrides (key=value). Raises UserError with a one-line message."""
    search_path(overrides)
    refuse_sweep(overrides)
    try:
        config = compose_config(overrides)
        refuse_missing(config)
        enable_user_code(names_in(config))
        OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(overrides, error)) from error
    check(config, overrides)
    return config


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Return train.yaml as hydra composes it with these overrides."""
    with outside_applications(), initialize_config_dir(version_base="1.3", config_dir=str(config_dir())):
        return compose("train", overrides=list(overrides))


@contextmanager
def outside_applications() -> Iterator[None]:
    """Let hydra compose although this program is itself a hydra application, whose state is restored afterwards."""
    application, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = application


def refuse_sweep(overrides: Sequence[str]) -> None:
    """Check that no override is a sweep, because this is a single run. Raises UserError if one is."""
    for override in parse_overrides(overrides):
        if override.is_sweep_override():
            raise UserError(f"{override.input_line} is a sweep, one run for each value: run outerloop train -m")


def refuse_missing(config: DictConfig) -> None:
    """Check that every option has a value. Raises UserError for one that the user must set."""
    for key in sorted(OmegaConf.missing_keys(config)):
        needed = "the dotted path of a class or function" if key.endswith("_target_") else "a value"
        raise UserError(f"{key} is not set, and needs {needed}: set {key}=...")


def group_choices(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that select the files of the configuration: choices of groups, and the search path."""
    known = [*groups(overrides), "hydra.searchpath"]
    return [text for text, o in zip(overrides, parse_overrides(overrides), strict=True) if o.key_or_group in known]


def check(config: DictConfig, overrides: Sequence[str]) -> None:
    """Check the rules for options that no single part checks. Raises UserError if one is violated."""
    defaults, choices = compose_config(group_choices(overrides)), groups(overrides)
    for override in parse_overrides(overrides):
        if not added_options.is_about_hydra(override) and override.key_or_group not in choices:
            adds = override.is_add() or override.is_force_add()
            if adds and not added_options.is_read(config, defaults, override.key_or_group):
                raise UserError(unknown_option(defaults, override.key_or_group))
        check_type(override, OmegaConf.select(defaults, override.key_or_group))
    for key in POSITIVE + NOT_NEGATIVE:
        minimum = 1 if key in POSITIVE else 0
        value = OmegaConf.select(config, key)
        if value is None or value < minimum:
            raise UserError(f"{key}={value} must be at least {minimum}: set {key}={OmegaConf.select(defaults, key)}")
    if config.threads is not None and (type(config.threads) is not int or config.threads < 1):
        raise UserError(f"threads={config.threads} must be a whole number of at least 1, or null: set threads=1")
    if config.eval.sequences < config.workers:
        raise UserError(
            f"eval.sequences={config.eval.sequences} is less than one per worker: set eval.sequences={config.workers}"
        )
    if config.merge_local != "carry" and not 0 <= config.merge_local <= 1:
        raise UserError(f"merge_local={config.merge_local} must be 0 .. 1, or carry: set merge_local=0.5")
    if config.state_dtype not in ("float32", "float64"):
        raise UserError(f"state_dtype={config.state_dtype} is not one of float32, float64: set state_dtype=float32")
    if config.state_device not in ("model", "cpu"):
        raise UserError(f"state_device={config.state_device} is not one of model, cpu: set state_device=model")
    check_optimizers(config)


def check_optimizers(config: DictConfig) -> None:
    """Check that exactly one optimizer steps: in each worker, or on the mean gradients. Raises UserError if not."""
    inner, outer = config.inner.optimizer, config.method.get("optimizer", "none")
    if config.method.get("reads") != "gradients":
        if not inner:
            raise UserError("inner=gradients moves no weights, so there is no pseudo-gradient: set inner=adamw")
        return
    if config.schedule.sync_every != 1:
        raise UserError("this method takes the gradient of every step: set schedule=every_h schedule.sync_every=1")
    if not outer:
        raise UserError("method=ddp steps with the inner optimizer, and inner=gradients has none: set inner=adamw")
    if inner and inner != outer:
        raise UserError("this method steps with the gradients itself, without an inner optimizer: set inner=gradients")


def inner_optimizer(config: DictConfig) -> DictConfig | None:
    """Return the optimizer of each worker's inner steps, or None if the method exchanges gradients instead."""
    return None if config.method.get("reads") == "gradients" else config.inner.optimizer


def explain(overrides: Sequence[str], error: Exception) -> str:
    """Return a message on the first invalid override and what is allowed there, or else the error's first line."""
    choices = groups(overrides)
    for override in parse_overrides(overrides):
        key, value = override.key_or_group, str(override.value())
        if key in choices and value not in choices[key]:
            return (
                f"{key}={value}: {key} is one of {', '.join(choices[key])}{suggestion(key + '=', value, choices[key])}"
            )
    first_line = str(error).strip().splitlines()[0]
    try:
        base = compose_config(group_choices(overrides))
    except (HydraException, OmegaConfBaseException):
        return first_line
    for override in parse_overrides(overrides):
        key = override.key_or_group
        is_known = key in choices or override.is_add() or added_options.is_about_hydra(override)
        if not is_known and OmegaConf.select(base, key, default=error) is error:
            return unknown_option(base, key)
    return first_line


def unknown_option(base: DictConfig, key: str) -> str:
    """Return the error message for an option that does not exist."""
    parent, _, _ = key.rpartition(".")
    while parent and not OmegaConf.is_dict(OmegaConf.select(base, parent)):
        parent, _, _ = parent.rpartition(".")
    node = OmegaConf.select(base, parent) if parent else base
    prefix = f"{parent}." if parent else ""
    allowed = [str(name) for name in node if not str(name).startswith("_")]
    word = key.removeprefix(prefix).split(".")[0]
    where = f"{parent} has" if parent else "the options are"
    return f"{key}: no such option, {where} {', '.join(allowed)}{suggestion(prefix, word, allowed)}"


def suggestion(prefix: str, word: str, allowed: Sequence[str]) -> str:
    """Return a suggestion of what to set, empty if no allowed name is close enough."""
    close = difflib.get_close_matches(word, allowed, n=1)
    return f": set {prefix}{close[0]}" if close else ""


def check_type(override: Override, default: Any) -> None:
    """Check that a value is a number if the default is one, except for the strings in WORDS. Raises UserError."""
    value, key = override.value(), override.key_or_group
    if value in WORDS.get(key, ()):
        return
    types = {bool: (bool,), int: (int,), float: (int, float)}.get(type(default))
    if types is None or value is None or override.is_sweep_override():
        return
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        kind = {bool: "true or false", int: "a whole number", float: "a number"}[type(default)]
        raise UserError(f"{key}={value}: {key} is {kind}: set {key}={str(default).lower()}")


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Return the overrides as parsed by hydra. Raises UserError for one that is not key=value."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        invalid = next((override for override in overrides if "=" not in override), " ".join(overrides))
        raise UserError(f"{invalid!r} is not an option: options look like rounds=10 or recipe=diloco") from error
