"""`outerloop train -m`: hydra's multirun, one run for each combination, through any hydra launcher and sweeper."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import IntervalSweep, Override
from omegaconf import DictConfig, OmegaConf, open_dict

from outerloop.commands import config
from outerloop.commands.added import is_about_hydra
from outerloop.commands.train import WorkerCrashed, train
from outerloop.types import UserError

died: list[str] = []
"""Runs of this sweep that ended with an error; the others go on."""


def multirun(arguments: list[str]) -> int:
    """Check every combination, then sweep. Exit code 1 if a run died."""
    overrides = [a for a in arguments if not a.startswith("-")]
    if any(o.startswith("run_dir=") for o in overrides):
        raise UserError("run_dir= with -m would be one folder for every run: type hydra.sweep.dir=FOLDER")
    for combination in combinations(overrides):
        settings = config.load(combination)
        if settings.workers_as == "ranks" or settings.island.kind != "single":
            raise UserError("torchrun starts one run: leave out -m, or type exchange=inprocess island=single")
    flags = [a for a in arguments if a not in overrides]
    sys.argv = ["outerloop", *flags, *overrides]  # as argparse wants them, wherever -m stood
    hydra.main(version_base="1.3", config_path=str(config.config_dir()), config_name="train")(job)()
    for line in died:
        print(line, file=sys.stderr)
    return 1 if died else 0


def combinations(overrides: list[str]) -> Iterator[list[str]]:
    """Every choice of the sweeps among the overrides; of an open interval its start.

    Hydra's own settings are left to hydra, but for the search path, where choices may come from.
    """
    read = zip(overrides, config.parsed(overrides), strict=True)
    options = [choices(text, o) for text, o in read if o.key_or_group == "hydra.searchpath" or not is_about_hydra(o)]
    return (list(chosen) for chosen in itertools.product(*options))


def choices(text: str, override: Override) -> list[str]:
    """Return one override as it is in each run of the sweep."""
    name, value = text.partition("=")[0], override.value()
    if isinstance(value, IntervalSweep):
        return [f"{name}={value.start}"]
    return [f"{name}={one}" for one in override.sweep_string_iterator()] if override.is_sweep_override() else [text]


def job(settings: DictConfig) -> float:
    """One run of the sweep, in the folder that hydra numbered for it; its validation loss, infinite if it died."""
    runtime = HydraConfig.get()
    with open_dict(settings):
        settings.run_dir = str(Path(runtime.sweep.dir) / str(runtime.job.num))
    print(f"\n== {settings.run_dir}: {', '.join(runtime.overrides.task)}")
    OmegaConf.resolve(settings)
    try:
        return float(train(settings)["val_loss"])
    except (UserError, WorkerCrashed) as error:
        died.append(f"outerloop: {settings.run_dir} died: {str(error).strip().splitlines()[-1]}")
        return float("inf")
