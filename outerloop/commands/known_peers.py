"""Let a peer that restarts join the remembered peers of its run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from outerloop.config import load
from outerloop.config.build import initial_peers
from outerloop.config.option_mapping import to_overrides
from outerloop.config.run_directory import identity_file
from outerloop.swarm.membership.answering_peers import answering_peers


def with_known_peers(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Return the settings, with exchange.initial_peers set to the remembered peers of the run that answer.

    The settings are unchanged if initial peers are set, if the exchange has none, if the run is new and has no folder
    yet, or if no remembered peer answers. `overrides`: those from which the settings were loaded.
    """
    if "initial_peers" not in config.exchange or initial_peers(config) or not config.run_dir:
        return config
    open_internet = bool(config.exchange.get("open_internet"))
    peers = answering_peers(identity_file(Path(config.run_dir), 0), open_internet=open_internet)
    return load.load([*overrides, *to_overrides({"exchange.initial_peers": peers})]) if peers else config
