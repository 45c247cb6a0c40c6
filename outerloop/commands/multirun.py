"""`outerloop train -m`: hydra's multirun, one run for each combination, through any hydra launcher and sweeper."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from outerloop.commands import config
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
    sys.argv = ["outerloop", *arguments]
    hydra.main(version_base="1.3", config_path=str(config.config_dir()), config_name="train")(job)()
    for line in died:
        print(line, file=sys.stderr)
    return 1 if died else 0


def combinations(overrides: list[str]) -> Iterator[list[str]]:
    """Every choice of the sweeps among the overrides; hydra's own settings and open intervals are left to hydra."""
    options = [
        [f"{o.key_or_group}={value}" for value in o.sweep_string_iterator()] if o.is_sweep_override() else [text]
        for text, o in zip(overrides, config.parsed(overrides), strict=True)
        if not o.key_or_group.startswith("hydra") and not o.is_interval_sweep()
    ]
    return (list(chosen) for chosen in itertools.product(*options))


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
