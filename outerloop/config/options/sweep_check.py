"""Check the command line of a sweep before its first run: hydra's own settings, and combinations of swept options."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from outerloop.config import load
from outerloop.config.added_options import is_about_hydra
from outerloop.config.options.compose import SEARCH_PATH, groups
from outerloop.config.options.search_path import config_dir
from outerloop.output import print_leniently
from outerloop.types import UserError

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""Hydra's default sweeper, which runs every combination. Other sweepers sample values."""
PARAMS = "hydra.sweeper.params"
PROGRESS_EVERY = 100
"""Number of checked combinations, which take about 0.3 s each, between two lines of progress."""


def expand_globs(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with each pattern, such as recipe=glob(d*), replaced by the choices that it matches.

    Raises UserError if a pattern matches none.
    """
    return [expand_glob(text, o, overrides) for text, o in zip(overrides, load.parse_overrides(overrides), strict=True)]


def expand_glob(text: str, override: Override, overrides: Sequence[str]) -> str:
    """Return an override with its pattern replaced by the choices that it matches, or `text` if it has no pattern."""
    pattern, group = override.value(), override.key_or_group
    if not isinstance(pattern, Glob):
        return text
    choices = groups(overrides).get(group, [])
    if not (matching := pattern.filter(choices)):
        raise UserError(
            f"{text} matches no choice of {group}, which has {', '.join(choices) or 'none'}: set {group}=A,B to run A"
            " and B"
        )
    return f"{text.partition('=')[0]}={','.join(matching)}"


def load_combinations(overrides: Sequence[str], settings: DictConfig) -> list[DictConfig]:
    """Load the configuration of every combination, or of a selection if a sweeper samples values.

    settings: hydra's own settings, which name the sweeper.

    Raises UserError if a combination is invalid.
    """
    samples = settings.sweeper._target_ != BASIC
    if not samples:
        refuse_intervals(overrides)
    configs, found = [], combinations(overrides, samples=samples)
    for number, combination in enumerate(found, start=1):
        configs.append(load.load(combination))
        if number % PROGRESS_EVERY == 0:
            print_leniently(f"checked {number} of {len(found)} combinations of options")
    return configs


def hydra_settings(overrides: Sequence[str]) -> DictConfig:
    """Return hydra's own settings, such as those of the sweeper. Raises UserError if they are invalid."""
    own = [text for text, o in zip(overrides, load.parse_overrides(overrides), strict=True) if is_about_hydra(o)]
    for text in own:
        if text.lstrip("+").startswith(PARAMS):  # null in hydra, which cannot merge options into it
            raise UserError(f"{text} cannot be set: sweep the option itself, such as 'rounds=range(1,4)'")
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(config_dir())):
            return compose("train", overrides=own, return_hydra_config=True).hydra
    except MissingConfigException as error:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        raise UserError(
            f"{group}={choice}: {group} must be one of {', '.join(error.options or ())}: set one of these, or run"
            " pip install 'outerloop-train[sweep]' for joblib, submitit and optuna"
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"{reason}: run outerloop train --cfg hydra to list the options") from error


def refuse_intervals(overrides: Sequence[str]) -> None:
    """Raise UserError if an override is a continuous interval, because hydra's default sweeper does not sample."""
    for override in load.parse_overrides(overrides):
        if override.is_interval_sweep():
            raise UserError(f"{override.input_line} needs a sweeper that samples values: add hydra/sweeper=optuna")


def combinations(overrides: Sequence[str], *, samples: bool = False) -> list[list[str]]:
    """Return every combination of the swept overrides. Of a continuous interval, only the start is returned.

    Hydra's own settings are left out, except for the search path, which may add choices for options.

    samples: whether the sweeper samples values. Then each choice, and the first and last value of each range and
        interval, is in one combination, with the first values of all other options.
    """
    pairs = zip(overrides, load.parse_overrides(overrides), strict=True)
    kept = [(text, o) for text, o in pairs if o.key_or_group == SEARCH_PATH or not is_about_hydra(o)]
    if not samples:
        return [list(combination) for combination in itertools.product(*(swept_values(*pair) for pair in kept))]
    options = [sampled_values(*pair) for pair in kept]
    if not all(options):
        return []
    first = [values[0] for values in options]
    others = [(i, value) for i, values in enumerate(options) for value in values[1:]]
    return [first, *([*first[:i], value, *first[i + 1 :]] for i, value in others)]


def swept_values(text: str, override: Override) -> list[str]:
    """Return one override for each value that the sweep gives to an option."""
    name, value = text.partition("=")[0], override.value()
    if isinstance(value, IntervalSweep):
        return [f"{name}={value.start}"]
    return (
        [f"{name}={choice}" for choice in override.sweep_string_iterator()] if override.is_sweep_override() else [text]
    )


def sampled_values(text: str, override: Override) -> list[str]:
    """Return one override for each choice of an option, or for both ends of a range or interval.

    Samplers such as optuna's include the end of a range.
    """
    name, values = text.partition("=")[0], swept_values(text, override)
    if isinstance(value := override.value(), IntervalSweep):
        return [*values, f"{name}={value.end}"]
    if not isinstance(value, RangeSweep) or len(values) < 2:
        return values
    return [values[0], values[-1] if value.shuffle else f"{name}={value.stop}"]
