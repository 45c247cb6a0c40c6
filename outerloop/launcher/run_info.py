"""Create the sinks (loggers) of a run, and collect the metadata that they show: name, group and tags."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from outerloop.config.instantiate import make
from outerloop.config.run_directory import RunDir, rows_until
from outerloop.sinks.sink import RunInfo, Sinks
from outerloop.types import UserError

AXES = ("method", "compress", "feedback", "aggregate", "exchange", "schedule")


def make_sinks(config: DictConfig) -> Sinks:
    """Return the sinks that `log=` configures. Raises UserError if an option is invalid or a package is missing."""
    nodes = {str(name): node for name, node in (config.get("log") or {}).items() if node is not None}
    for name, node in nodes.items():
        if not OmegaConf.is_dict(node) or "_target_" not in node:
            raise UserError(
                f"log.{name} does not name a class: set log={name}, or +log.{name}._target_=mymodule.MySink"
            )
    return Sinks({name: make(node) for name, node in nodes.items()})


def run_info(config: DictConfig, run: RunDir, console: Console) -> RunInfo:
    """Return a run's metadata for its sinks. The group of a run is the name of its sweep, or else exchange.run."""
    swept = swept_options()
    sweep = Path(HydraConfig.get().sweep.dir).name if swept is not None else None
    options = short_options(swept or {})
    return RunInfo(
        path=run.path,
        settings=cast(dict[str, Any], OmegaConf.to_container(config, resolve=True)),
        resume_step=run.resume_step,
        name=run_name(config.recipe, run.path),
        group=sweep or config.exchange.get("run"),
        tags=(
            config.recipe,
            *(f"{axis}={config[axis]._target_.rpartition('.')[2]}" for axis in AXES),
            *(f"{key}={value}" for key, value in options.items()),
        ),
        console=console,
        earlier=rows_until(run.path, run.resume_step),
    )


def run_name(recipe: str, path: Path) -> str:
    """Return the recipe and the swept options of a job of a sweep, or else the name of the run directory."""
    swept = swept_options()
    return path.name if swept is None else "-".join([recipe, *(f"{k}{v}" for k, v in short_options(swept).items())])


def short_options(swept: dict[str, str]) -> dict[str, str]:
    """Return the swept options except the recipe, with short names."""
    return with_short_names({key: value for key, value in swept.items() if key != "recipe"})


def with_short_names(options: dict[str, str]) -> dict[str, str]:
    """Replace each key with its last part (inner.lr with lr), unless another key ends with the same part."""
    short = {key: key.rpartition(".")[2] for key in options}
    uses = Counter(short.values())
    return {name if uses[name] == 1 else key: options[key] for key, name in short.items()}


def swept_options() -> dict[str, str] | None:
    """Return a map from option to value for the options that differ between the jobs of a sweep; None outside a sweep.

    `multirun` excludes all other options from job names.
    """
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    job = HydraConfig.get().job
    overrides = OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task))
    constant = job.config.override_dirname.exclude_keys
    return {o.key_or_group: str(o.value()) for o in overrides if o.key_or_group not in constant}
