"""Describe a run for machines that want to join it, by a recipe, packaged choices and values, without code or paths.

The description (the options of a run manifest) is the difference between the run's composed configuration and the
packaged yaml files. It does not depend on how the options were typed. A run with code or a recipe of the user's own
cannot be described in this way; its manifest then contains the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

import outerloop
from outerloop.config.budget import BUDGETS
from outerloop.config.manifest.allowed_options import EXCHANGES, OWN_CLASS, is_plain, objection
from outerloop.config.manifest.content import MAX_TEXT, NEEDED, RunManifest
from outerloop.config.manifest.machine_options import is_machine_option
from outerloop.config.options.compose import compose_config
from outerloop.config.options.option_docs import read_choice
from outerloop.config.options.search_path import choices_in, config_dir
from outerloop.config.shared_settings import fingerprint
from outerloop.report.runs import flatten
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import printable

GROUPS = ("inner", "method", "compress", "feedback", "aggregate", "schedule", "model", "data")
"""Groups whose choice a manifest may name, in addition to the recipe and the exchange."""
MODEL = "model"
"""A group in which most choices differ only in values. The manifest names the choice closest to the run's model, so
that users recognize the model."""
RUN = "exchange.run"
OMITTED = (RUN, *BUDGETS)
"""Options that the manifest describes in another way: by its `run`, and by the number of rounds."""
TRIED = 4
"""Maximum number of yaml files that `closest_choice` composes. One is not enough, because yaml files for the same class
may differ in the classes of nested parts."""
Settings = Mapping[str, Any]


class NotDescribable(Exception):
    """The run has a setting that a manifest cannot contain. The message is the reason."""


def add_manifest(config: DictConfig) -> None:
    """Set exchange.manifest to the manifest of this run, if its exchange serves one."""
    if "manifest" in config.exchange:
        config.exchange.manifest = describe(config)


def describe(config: DictConfig) -> str:
    """Return the manifest of a run as JSON. If the run cannot be described, the manifest contains the reason."""
    run = config.exchange.get("run") or "default"
    known: dict[str, Any] = {"version": outerloop.__version__, "run": run, "fingerprint": fingerprint(config)}
    try:
        if not is_plain(RUN, str(run)):
            raise NotDescribable(f"{RUN} contains characters other than letters, digits, spaces and _ . , : + -")
        return RunManifest(**known, options=shared_options(config), needs=needed_options(config)).to_json()
    except (NotDescribable, MalformedMessage) as reason:
        return RunManifest(**known | {"run": "default"}, reason=printable(str(reason))[:MAX_TEXT]).to_json()


def needed_options(config: DictConfig) -> tuple[str, ...]:
    """Return the options with paths that a machine must set itself to join this run.

    The result is empty if the peers share their data, because a machine that joins then downloads the data from them.
    """
    return () if "sha256" in config.data else tuple(key for key in NEEDED if OmegaConf.select(config, key))


def shared_options(config: DictConfig) -> dict[str, Any]:
    """Return the options that a machine must set to join this run: option -> value.

    Raises NotDescribable if packaged choices and plain values cannot describe the run.
    """
    if config.island.kind == "sharded":
        raise NotDescribable("each peer is an island of processes that hold shards of the model (island=sharded)")
    choices = packaged_choices(config)
    options = choices | changed_values(packaged(**choices), config) | {"exchange.peers": config.exchange.peers}
    packaged_groups = choices_in([config_dir()])
    for key, value in options.items():
        if objection(key, value, packaged_groups):
            raise NotDescribable(f"{key} has a value that is not a number or a plain text")
    return options


def packaged_choices(config: DictConfig) -> dict[str, str]:
    """Return the choice of the recipe, of the exchange, and of each group that the recipe does not determine.

    Raises NotDescribable if the recipe or the exchange is not one of outerloop's own.
    """
    if config.recipe not in choices_in([config_dir()])["recipe"]:
        raise NotDescribable("its recipe is not one of outerloop's own")
    exchange = [
        name for name in EXCHANGES if read_choice(config_dir(), "exchange", name).target == config.exchange._target_
    ]
    if not exchange:
        raise NotDescribable("its exchange is not one of outerloop's swarms")
    choices = {"recipe": config.recipe, "exchange": exchange[0]}
    own = leaves(config)
    for group in GROUPS:
        ours, theirs = section(own, group), section(leaves(packaged(**choices)), group)
        if not same_structure(ours, theirs) or (group == MODEL and num_differing(ours, theirs)):
            choices[group] = closest_choice(group, ours, choices)
    return choices


@cache
def packaged(**choices: str) -> DictConfig:
    """Return the packaged configuration with these choices and workers=1. It is cached, so do not modify it."""
    return compose_config([*(f"{group}={choice}" for group, choice in choices.items()), "workers=1"])


def leaves(config: DictConfig) -> dict[str, Any]:
    """Return the settings that a manifest may describe, as dotted key -> value."""
    values = flatten(OmegaConf.to_container(config, resolve=True))
    return {key: value for key, value in values.items() if not is_machine_option(key) and key not in OMITTED}


def section(values: Settings, group: str) -> dict[str, Any]:
    """Return the settings of one group."""
    return {key: value for key, value in values.items() if key.split(".")[0] == group}


def num_differing(ours: Settings, theirs: Settings) -> int:
    """Return the number of settings that differ or that only one of the two sides has."""
    return sum(not is_equal(ours, theirs, key) for key in ours.keys() | theirs.keys())


def is_equal(ours: Settings, theirs: Settings, key: str) -> bool:
    """Return whether both sides have the setting `key`, with the same value and type.

    Types are compared because 1 and 1.0 give different fingerprints.
    """
    return key in ours and key in theirs and json.dumps(ours[key]) == json.dumps(theirs[key])


def same_structure(ours: Settings, theirs: Settings) -> bool:
    """Return whether both sides have the same options and classes. The values of the options may differ."""
    return ours.keys() == theirs.keys() and all(is_equal(ours, theirs, key) for key in ours if is_hidden(key))


def is_hidden(key: str) -> bool:
    """Return whether hydra reads this key itself, such as `_target_`."""
    return key.rpartition(".")[2].startswith("_")


def closest_choice(group: str, values: Settings, choices: Mapping[str, str]) -> str:
    """Return the name of the packaged choice of `group` that is closest to the run's settings of this group, `values`.

    The choice must have the same options and classes as `values`. Of several such choices, the one with the fewest
    different values is returned. Only the TRIED most similar yaml files are composed. `choices`: the choices of the
    other groups. Raises NotDescribable if no composed file has the same options and classes.
    """
    names = [name for name in choices_in([config_dir()])[group] if (group, name) != OWN_CLASS]
    for name in sorted(names, key=lambda name: num_differing_from_file(group, name, values))[:TRIED]:
        if same_structure(values, section(leaves(packaged(**{**choices, group: name})), group)):
            return name
    raise NotDescribable(f"its {group} part is not one of outerloop's own, or has other options")


def num_differing_from_file(group: str, name: str, values: Settings) -> int:
    """Return how many settings differ between a choice's yaml file and `values`. Settings of only one side count, too.

    Values that refer to other options and the classes of nested parts are not compared. If the class of the part itself
    differs, the number of all settings in `values` is added.
    """
    choice = read_choice(config_dir(), group, name)
    defaults = {option.name: option.default for option in choice.options}
    known = {
        key: values.get(key) if "${" in text else yaml.safe_load(text)
        for key, text in defaults.items()
        if not is_machine_option(key)
    }
    own = {key: value for key, value in values.items() if not is_hidden(key)}
    other_class = bool(choice.target) and choice.target != values.get(f"{group}._target_")
    return num_differing(own, known) + len(values) * other_class


def changed_values(base: DictConfig, config: DictConfig) -> dict[str, Any]:
    """Return the options of `config` that differ from the packaged configuration `base`: option -> value.

    An option that differs only because it refers to another option is not included; for example, inner.optimizer.lr
    refers to inner.lr. To detect this, the differing options are set in `base` one after the other, those with fewer
    dots first.

    Raises NotDescribable if the two configurations do not have the same options and classes.
    """
    base, wanted, changed = base.copy(), leaves(config), dict[str, Any]()
    while (key := first_changed(current := leaves(base), wanted)) is not None:
        if key not in current or key not in wanted or is_hidden(key):
            raise NotDescribable(f"{key} is not one of outerloop's options, or names a custom class")
        changed[key] = wanted[key]
        OmegaConf.update(base, key, wanted[key])
    return changed


def first_changed(ours: Settings, theirs: Settings) -> str | None:
    """Return the key of the first setting that differs, or None if all are equal.

    Keys with fewer dots come first; keys with equally many dots are in alphabetical order.
    """
    differing = [key for key in ours.keys() | theirs.keys() if not is_equal(ours, theirs, key)]
    return min(differing, key=lambda key: (key.count("."), key), default=None)
