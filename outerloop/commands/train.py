"""`outerloop train`: parse hydra's flags for single runs and sweeps, then train or show the configuration."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig, OmegaConf

from outerloop.config import load
from outerloop.config.options import typed_options
from outerloop.config.options.search_path import config_dir
from outerloop.launcher.interrupts import handle_interrupts
from outerloop.types import UserError

SHOWN = ("job", "hydra", "all")
"""Allowed values of --cfg. If the flag has no value, the first one is used."""
REFUSED = {
    "config_path": "the options are those in outerloop's own folder: add yours with --config-dir FOLDER",
    "config_name": "the options are those of outerloop's train.yaml: put yours into a file, recipe=./mine.yaml",
    "experimental_rerun": "run outerloop train --config RUN/config.yaml",
}
"""Hydra flag that `outerloop train` refuses -> the reason, or what to use instead."""
SWEEP_SETTINGS = ("hydra.launcher", "hydra.sweep")
"""Prefixes of hydra's settings that apply only to sweeps. The second one includes hydra.sweeper."""


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code.

    Raises UserError for a mistake that the user can correct, and WorkerCrashed if a worker fails.
    """
    flags = parse(arguments)
    overrides = all_overrides(flags)
    if flags.shell_completion:
        return run_hydra(["--shell-completion", *flags.overrides])
    if flags.multirun:
        from outerloop.launcher.multirun import multirun

        handle_interrupts()
        return multirun(overrides)
    if flags.cfg or flags.info or flags.hydra_help:
        load.load(overrides)
        return run_hydra([*shown_flags(flags), *load.complete(overrides)])
    refuse_sweep_settings(flags.overrides)
    return train(overrides)


def refuse_sweep_settings(overrides: Sequence[str]) -> None:
    """Raise UserError if an override sets hydra's launcher, sweeper or folder of a sweep, which a run does not have."""
    for override in load.parse_overrides(overrides):
        if override.key_or_group.replace("/", ".").startswith(SWEEP_SETTINGS):
            raise UserError(f"{override.input_line} applies only to a sweep: run outerloop train -m, or leave it out")


def train(overrides: list[str]) -> int:
    """Train one run and return the exit code."""
    overrides = typed_options.with_run_dir(overrides)
    return train_with(load.load(overrides), overrides)


def train_with(settings: DictConfig, overrides: list[str]) -> int:
    """Train one run with settings that were loaded from `overrides`, and return the exit code."""
    if settings.workers_as == "ranks" or settings.island.kind != "single":
        from outerloop.launcher.torchrun.rank import train as train_rank

        return train_rank(overrides)
    from outerloop.launcher.train import train as train_here

    handle_interrupts()
    if settings.exchange.get("initial_peers") is not None:
        from outerloop.commands.known_peers import with_known_peers

        settings = with_known_peers(settings, overrides)
    train_here(settings, overrides=overrides)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the flags and overrides, as parsed by hydra's own parser. Raises UserError if a flag is not allowed."""
    parser = get_args_parser()
    parser.exit_on_error = False
    parser.add_argument("--config", type=Path, help="config.yaml or run_dir of an earlier run: train with its options")
    try:
        flags, unknown = parser.parse_known_intermixed_args(with_cfg_value(arguments))
    except argparse.ArgumentError as error:
        raise UserError(f"{error}: run outerloop train --help") from error
    if unknown:
        raise UserError(f"{unknown[0]} is not a flag of outerloop train: run outerloop train --help")
    for flag, reason in REFUSED.items():
        if getattr(flags, flag):
            raise UserError(f"--{flag.replace('_', '-')} does not apply: {reason}")
    shown = [name for name in ("multirun", "run", "cfg", "info", "hydra_help") if getattr(flags, name)]
    if len(shown) > 1:
        raise UserError(f"--{shown[0]} and --{shown[1]} exclude each other: omit one".replace("_", "-"))
    if flags.resolve and not flags.cfg:
        raise UserError("--resolve applies only to --cfg: run outerloop train --cfg job --resolve")
    return flags


def with_cfg_value(arguments: list[str]) -> list[str]:
    """Return the arguments, with the value "job" inserted after each --cfg that has no value."""
    return [
        part
        for flag, value in pairwise([*arguments, ""])
        for part in ([flag, SHOWN[0]] if flag in ("--cfg", "-c") and value not in SHOWN else [flag])
    ]


def all_overrides(flags: argparse.Namespace) -> list[str]:
    """Return the overrides of the earlier run in --config, followed by those from the command line.

    The folder in --config-dir is added to hydra's search path.
    """
    earlier = typed_options.read(flags.config) if flags.config else []
    return typed_options.with_folder([*earlier, *flags.overrides], flags.config_dir)


def shown_flags(flags: argparse.Namespace) -> list[str]:
    """Return the flags that make hydra show information instead of running a job."""
    valued = {"--cfg": flags.cfg, "--package": flags.package, "--info": flags.info}
    plain = {"--resolve": flags.resolve, "--hydra-help": flags.hydra_help}
    return [f"{flag}={value}" for flag, value in valued.items() if value] + [flag for flag in plain if plain[flag]]


def run_hydra(arguments: list[str]) -> int:
    """Run hydra with these arguments, to show information. Return exit code 0; on an error, hydra exits with 1."""
    sys.argv = [sys.argv[0], *arguments]
    hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="train")(OmegaConf.to_yaml)()
    return 0
