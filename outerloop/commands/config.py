"""Command line -> one resolved configuration, and what to say when that does not work.

Hydra composes configs/train.yaml with its groups. When it cannot, `explain` finds the first override at fault and
answers with what is allowed there.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import outerloop
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
"""Numbers in whose place a word may stand."""
NOT_NEGATIVE = ("seed", "eval.every", "checkpoint.every", "keep_payload_rounds", "inner.warmup_steps")


def config_dir() -> Path:
    """Where the yaml files are: inside the installed package, or beside it in a checkout."""
    package = Path(outerloop.__file__).parent
    return next(path for path in (package / "configs", package.parent / "configs") if path.is_dir())


def groups() -> dict[str, list[str]]:
    """Config group -> its choices."""
    return {
        folder.name: sorted(file.stem for file in folder.glob("*.yaml"))
        for folder in sorted(config_dir().iterdir())
        if folder.is_dir()
    }


def load(overrides: Sequence[str]) -> DictConfig:
    """Overrides (key=value) -> the checked configuration. Raises UserError in one line."""
    try:
        config = composed(overrides)
        OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(overrides, error)) from error
    check(config, overrides)
    return config


def composed(overrides: Sequence[str]) -> DictConfig:
    """Hydra's composition of train.yaml with these overrides."""
    with initialize_config_dir(version_base="1.3", config_dir=str(config_dir())):
        return compose("train", overrides=list(overrides))


def check(config: DictConfig, overrides: Sequence[str]) -> None:
    """The rules that no single part can see. Raises UserError."""
    defaults = composed([o for o in overrides if o.split("=")[0] in groups()])
    for override in parsed(overrides):
        check_type(override, OmegaConf.select(defaults, override.key_or_group))
    for key in POSITIVE + NOT_NEGATIVE:
        least = 1 if key in POSITIVE else 0
        value = OmegaConf.select(config, key)
        if value is None or value < least:
            raise UserError(f"{key}={value} must be at least {least}: type {key}={OmegaConf.select(defaults, key)}")
    if config.threads is not None and (type(config.threads) is not int or config.threads < 1):
        raise UserError(f"threads={config.threads} must be a whole number of at least 1, or null: type threads=1")
    if config.eval.sequences < config.workers:
        raise UserError(
            f"eval.sequences={config.eval.sequences} is less than one a worker: type eval.sequences={config.workers}"
        )
    if config.merge_local != "carry" and not 0 <= config.merge_local <= 1:
        raise UserError(f"merge_local={config.merge_local} must be 0 .. 1, or carry: type merge_local=0.5")
    if config.state_dtype not in ("float32", "float64"):
        raise UserError(f"state_dtype={config.state_dtype} is not one of float32, float64: type state_dtype=float32")
    if config.state_device not in ("model", "cpu"):
        raise UserError(f"state_device={config.state_device} is not one of model, cpu: type state_device=model")
    check_who_steps(config)


def check_who_steps(config: DictConfig) -> None:
    """Check that one optimizer steps: in each worker, or on the mean of the gradients. Raises UserError."""
    inner, outer = config.inner.optimizer, config.method.get("optimizer", "none")
    if config.method.get("reads") != "gradients":
        if not inner:
            raise UserError("inner=gradients moves no weights, so there is no pseudo-gradient: type inner=adamw")
        return
    if config.schedule.sync_every != 1:
        raise UserError("this method takes the gradient of every step: type schedule=every_h schedule.sync_every=1")
    if not outer:
        raise UserError("method=ddp steps with the inner optimizer, and inner=gradients has none: type inner=adamw")
    if inner and inner != outer:
        raise UserError("this method steps with the gradients itself, without an inner optimizer: type inner=gradients")


def stepped_inside(config: DictConfig) -> DictConfig | None:
    """Return the optimizer that each worker steps with on its own; None where the gradients themselves are sent."""
    return None if config.method.get("reads") == "gradients" else config.inner.optimizer


def explain(overrides: Sequence[str], error: Exception) -> str:
    """The first override at fault, and what is allowed in its place; else the error's own first line."""
    choices = groups()
    for override in parsed(overrides):
        key, value = override.key_or_group, str(override.value())
        if key in choices and value not in choices[key]:
            return (
                f"{key}={value}: {key} is one of {', '.join(choices[key])}{suggestion(key + '=', value, choices[key])}"
            )
    base = composed([o for o in overrides if o.split("=")[0] in choices])
    for override in parsed(overrides):
        key = override.key_or_group
        if key not in choices and not override.is_add() and OmegaConf.select(base, key, default=error) is error:
            return unknown(base, key)
    return str(error).strip().splitlines()[0]


def unknown(base: DictConfig, key: str) -> str:
    """What to say of an option that does not exist."""
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
    """What to type, when something close enough is allowed."""
    close = difflib.get_close_matches(word, allowed, n=1)
    return f": type {prefix}{close[0]}" if close else ""


def check_type(override: Override, default: Any) -> None:
    """A number where the default is a number, or one of the words that stand for one. Raises UserError."""
    value, key = override.value(), override.key_or_group
    if value in WORDS.get(key, ()):
        return
    wanted = {bool: (bool,), int: (int,), float: (int, float)}.get(type(default))
    if wanted is None or value is None or override.is_sweep_override():
        return
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        kind = {bool: "true or false", int: "a whole number", float: "a number"}[type(default)]
        raise UserError(f"{key}={value}: {key} is {kind}: type {key}={str(default).lower()}")


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Overrides as hydra reads them. Raises UserError for one that is not key=value."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        bad = next((o for o in overrides if "=" not in o), " ".join(overrides))
        raise UserError(f"{bad!r} is not an option: options look like rounds=10 or recipe=diloco") from error
