"""Read the settings that a run has saved in its directory."""

from __future__ import annotations

from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf

from outerloop.types import UserError

FILE = "config.yaml"


def saved_settings(run_dir: Path) -> DictConfig:
    """Return the settings in the config.yaml of a run directory.

    Raises FileNotFoundError if there is no such file, and UserError if it cannot be read or contains no settings.
    """
    file = run_dir / FILE
    try:
        config = OmegaConf.load(file)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, yaml.YAMLError) as error:
        what = str(error).splitlines()[0]
        raise UserError(f"{file} cannot be read ({what}): restore it from a backup, or set another run_dir=") from error
    if not isinstance(config, DictConfig) or not config:
        raise UserError(f"{file} contains no settings: restore it from a backup, or set another run_dir=")
    return config


def run_id(config: DictConfig) -> str:
    """Return the name of the run that is part of protocol names: exchange.run, or "default" if it is not set."""
    return str(config.exchange.get("run") or "default")
