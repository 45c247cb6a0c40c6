"""Load one resolved configuration from the command line, or raise an error that explains what is wrong.

Hydra composes configs/train.yaml with its groups. If this fails, `explain` names the first invalid override and the
allowed values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from outerloop.config import added_options, budget, schema
from outerloop.config.options import argument_types
from outerloop.config.options.compose import (
    complete,
    compose_config,
    group_choices,
    groups,
    parse_overrides,
    search_path,
)
from outerloop.config.options.explain import explain, unknown_option
from outerloop.config.options.replaced_parts import drop_unused
from outerloop.config.options.search_path import config_dir
from outerloop.config.user_code import enable_user_code, names_in
from outerloop.types import UserError


def refuse_ambiguous(overrides: Sequence[str]) -> None:
    """Raise UserError if a selected choice exists both in a user's folder and in outerloop."""
    for override in parse_overrides(overrides):
        name = f"{override.key_or_group}/{override.value()}.yaml"
        for folder in search_path(overrides) if (config_dir() / name).exists() else ():
            if (folder / name).exists():
                raise UserError(f"{folder / name} has the same name as a yaml file of outerloop: rename your file")


def load(overrides: Sequence[str]) -> DictConfig:
    """Return the validated configuration for these overrides (key=value). Raises UserError with a one-line message."""
    overrides = complete(overrides)
    refuse_sweep(overrides)
    refuse_ambiguous(overrides)
    try:
        config = compose_config(overrides)
        refuse_missing(config)
        enable_user_code(names_in(config))
        drop_unused(config, overrides)
        OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(overrides, error)) from error
    check(config, overrides)
    budget.refuse_rounds(parse_overrides(overrides))
    budget.apply(config)
    return config


def refuse_sweep(overrides: Sequence[str]) -> None:
    """Raise UserError if an override is a sweep: a single run has only one value per option."""
    for override in parse_overrides(overrides):
        if override.is_sweep_override():
            raise UserError(f"{override.input_line} is a sweep with one run per value: run outerloop train -m")


def refuse_missing(config: DictConfig) -> None:
    """Raise UserError if an option that the user must set has no value."""
    for key in sorted(OmegaConf.missing_keys(config)):
        needed = "the dotted path of a class or function" if key.endswith("_target_") else "a value"
        raise UserError(f"{key} is not set, and needs {needed}: set {key}=...")


def check(config: DictConfig, overrides: Sequence[str]) -> None:
    """Check that all options exist, and that their values are valid and compatible. Raises UserError if not."""
    defaults = cache(lambda: compose_config(group_choices(overrides)))  # slow: half the time of `load`
    choices = groups(overrides)
    schema.check(config, defaults)
    for override in parse_overrides(overrides):
        if not added_options.is_about_hydra(override) and override.key_or_group not in choices:
            adds = override.is_add() or override.is_force_add()
            if adds and not added_options.is_read(config, defaults(), override.key_or_group):
                raise UserError(unknown_option(defaults(), override))
        argument_types.check(config, defaults, override)
    if config.eval.sequences < config.workers:
        raise UserError(
            f"eval.sequences={config.eval.sequences} is less than one per worker: set eval.sequences={config.workers}"
        )
    if "://" in (config.run_dir or ""):
        raise UserError(f"run_dir={config.run_dir} is a URL, but a run is stored in a folder: set run_dir= to a folder")
    check_optimizers(config)


def check_optimizers(config: DictConfig) -> None:
    """Check that the optimizers and H, the number of inner steps per round, fit the method. Raises UserError if not.

    A method that exchanges gradients requires H = 1. Any other method requires an inner optimizer.
    """
    inner, outer = config.inner.optimizer, config.method.get("optimizer", "none")
    if config.method.get("reads") != "gradients":
        if not inner:
            raise UserError("inner=gradients takes no inner steps, so there is no pseudo-gradient: set inner=adamw")
        return
    if config.schedule.sync_every != 1:
        raise UserError("this method exchanges the gradient of every step: set schedule=every_h schedule.sync_every=1")
    if not outer:
        raise UserError(
            "method=ddp applies gradients with the inner optimizer, but inner=gradients has none: set inner=adamw"
        )
    if inner and inner != outer:
        raise UserError("this method applies the gradients itself, without an inner optimizer: set inner=gradients")


def inner_optimizer(config: DictConfig) -> DictConfig | None:
    """Return the optimizer settings for the inner steps, or None if the method exchanges gradients instead."""
    return None if config.method.get("reads") == "gradients" else config.inner.optimizer
