"""Complete the options of an open run, and refuse options with which volunteers could not join."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig

from outerloop.config import load
from outerloop.config.budget import BUDGETS
from outerloop.config.build import capabilities
from outerloop.config.instantiate import make
from outerloop.config.manifest.allowed_options import EXCHANGES
from outerloop.config.manifest.content import parse
from outerloop.config.manifest.describe_run import describe
from outerloop.config.option_mapping import to_overrides
from outerloop.config.options.compose import parse_overrides
from outerloop.config.part_checks import reason_against_scores
from outerloop.swarm.p2p.reachability import is_loopback
from outerloop.types import UserError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
"""Form of a run's name, which also becomes the name of a folder, a systemd unit and a container."""
ROUNDS = 100_000
"""Number of rounds of an open run, unless the user sets it. It is so large that the run lasts until it is stopped."""
HF_EVERY = 20
"""Number of rounds between two exports of the model, unless the user sets it. An open run rarely reaches its end, where
the model is exported by default."""
GATHER, GOSSIP = EXCHANGES
AGGREGATE = "median_cosine"
"""Aggregate of an open run, unless the user sets one. In measurements, it was the best one against peers that send
false values (scripts/results/attacks/COMMAND.md)."""

SCORES = {"scores.payloads": 2, "scores.windows": 16, "exclude_accused": True}
"""Options with which peers of an open run score payloads and vote, unless the user sets them. Per round, this costs as
much as training on 43 windows."""


def check_name(name: str) -> None:
    """Raise UserError unless `name` is a valid name of an open run."""
    if not NAME.fullmatch(name):
        raise UserError(f"--name {name} must be 1 to 40 letters, digits, - or _: pass --name summer")


def host_overrides(typed: Sequence[str], *, name: str, host: str, port: int) -> list[str]:
    """Return the overrides of an open run: defaults for options that the user did not type, then the user's overrides.

    Raises UserError if the user typed an invalid option, or one that --name sets.
    """
    keys = [override.key_or_group for override in parse_overrides(typed)]
    if "exchange.run" in keys:
        raise UserError("exchange.run is set by --name: leave it out, and pass --name NAME")
    for text, key in zip(typed, keys, strict=True):
        if key == "exchange" and text.partition("=")[2] not in EXCHANGES:
            raise UserError(f"volunteers join over a network, so {text} cannot be hosted: leave it out")
    own = {
        "workers": 1,
        "run_dir": f"runs/{name}",
        "exchange.run": name,
        "exchange.host": host,
        "exchange.port": port,
        "exchange.open_internet": not is_loopback(host),
        "checkpoint.hf_every": HF_EVERY,
    }
    own |= {} if {"rounds", *BUDGETS} & set(keys) else {"rounds": ROUNDS}
    groups = [] if "exchange" in keys else [f"exchange={default_exchange(typed)}"]
    groups += [] if any(key.startswith("aggregate") for key in keys) else default_aggregate(typed)
    own |= default_scores([*groups, *typed])
    return [*groups, *to_overrides({key: value for key, value in own.items() if key not in keys}), *typed]


def default_exchange(typed: Sequence[str]) -> str:
    """Return the exchange of an open run: gossip if the recipe that the user typed uses gossip, otherwise gather."""
    return GATHER if capabilities(load.load(recipe_overrides(typed))).agrees else GOSSIP


def default_aggregate(typed: Sequence[str]) -> list[str]:
    """Return the override aggregate=AGGREGATE, or no override if this aggregate does not suit the recipe.

    AGGREGATE weakens payloads and then applies another aggregate. It suits a recipe that uses this other aggregate by
    itself, because then nothing else changes. The override is needed because the aggregates of the recipes accept
    payloads of any direction (docs/explanation/threat-model.md).
    """
    if default_exchange(typed) != GATHER:
        return []
    recipe, override = recipe_overrides(typed), f"aggregate={AGGREGATE}"
    suits = load.load([*recipe, override]).aggregate.of == load.load(recipe).aggregate
    return [override] if suits else []


def default_scores(typed: Sequence[str]) -> dict[str, Any]:
    """Return the options with which peers of an open run score payloads and vote.

    Return {} if payloads cannot be scored, or if the user set exclude_accused=false or scores.payloads=0.
    """
    config = load.load([*to_overrides(SCORES), *typed])
    parts = {"method": make(config.method), "schedule": make(config.schedule), "exchange": capabilities(config)}
    data = get_object(config.data._target_)
    streamed = isinstance(data, type) and not hasattr(data, "training_text")
    wanted = config.exclude_accused and config.scores.payloads
    unwanted = not wanted or streamed or reason_against_scores(config, **parts)
    return {} if unwanted else SCORES


def recipe_overrides(typed: Sequence[str]) -> list[str]:
    """Return those of the user's overrides that choose the recipe."""
    return [text for text in typed if parse_overrides([text])[0].key_or_group == "recipe"]


def refuse_closed(config: DictConfig) -> None:
    """Raise UserError if volunteers could not join a run with this configuration."""
    if config.island.kind != "single":
        raise UserError("outerloop host starts its workers itself, without torchrun: leave out island=")
    if not capabilities(config).replicated and config.exchange.peers <= config.workers:
        raise UserError(
            "gossip starts with a fixed number of peers: add exchange.peers=N, the number of workers on all machines"
        )
    if config.exchange.allow:
        raise UserError(
            "volunteers could not join this run, because it has an allow-list: leave out exchange.allow, or use"
            " outerloop train and outerloop invite"
        )
    if reason := parse(describe(config).encode()).reason:
        raise UserError(f"volunteers could not join this run, because {reason}: change this, or run outerloop train")
