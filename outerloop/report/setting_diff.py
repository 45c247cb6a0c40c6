"""Compare groups of runs by the settings in their config.yaml, and give each group a label.

A label consists of the recipe and a few settings in which the group differs from other groups of the same recipe.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any

Settings = dict[str, Any]

NOT_TRAINED = [
    "run_dir",
    "steps",
    "tokens",
    "log",
    "threads",
    "inner.micro_batch",
    "watch",
    "log_every",
    "checkpoint",
    "samples",
    "corpus",
    "data.folder",
    "state_device",
    "keep_payload_rounds",
    "workers_as",
    "round_timeout_s",
    "max_failed_rounds",
    "exchange.run",
    "exchange.worker",
    "exchange.first_worker",
    "exchange.folder",
    "exchange.timeout_s",
    "exchange.identity_path",
    "exchange.initial_peers",
    "exchange.host",
    "exchange.port",
    "exchange.announce",
    "exchange.open_internet",
    "exchange.allow",
    "exchange.invites",
    "exchange.public_name",
    "exchange.max_mbit",
    "exchange.newcomer",
    "exchange.join_timeout_s",
    "exchange.patience_s",
    "exchange.meeting_s",
    "exchange.fragments",
    "exchange.fingerprint",
    "exchange.settings",
    "exchange.corpus",
    "exchange.manifest",
    "exchange.on_status",
    "exchange.reform",
    "exchange.max_blob_bytes",
]
"""Settings that do not distinguish groups of runs. Each entry includes the settings nested below it. `scores` belongs
to them unless scores decide which payloads count (exclude_accused)."""
MAX_NAMED = 4
"""Maximum number of settings in a label; longer lists are reduced to a small set that distinguishes the groups."""


class ClassPath(str):
    """The import path of a class. Labels and tables show only its last component."""


def training_settings(settings: Settings) -> Settings:
    """Return the settings by which runs are grouped; they are equal for all runs of a group.

    The seed is omitted, and so is every nested `seed` with the same value. A key such as compress._target_ is returned
    as compress, with the class path as its value. Other hydra keys with a leading underscore are omitted.
    """
    seed = settings.get("seed")
    ignored = NOT_TRAINED if settings.get("exclude_accused") else [*NOT_TRAINED, "scores"]
    out: Settings = {}
    for key, value in settings.items():
        if any(f"{key}.".startswith(f"{name}.") for name in ignored):
            continue
        node, _, word = key.rpartition(".")
        if word == "_target_":
            out[node] = ClassPath(value)
        elif not word.startswith("_") and not (word == "seed" and value == seed):
            out[key] = value
    return out


def identity(settings: Settings) -> str:
    """Return a string that is equal for equal settings."""
    return json.dumps(settings, sort_keys=True, default=str)


def labels(groups: Sequence[Settings]) -> list[str]:
    """Return one label per group. `groups`: the results of `training_settings` for each group, all different."""
    out: list[str] = []
    keys = keys_by_recipe(groups)
    for settings in groups:
        words = [f"{key}={format_value(settings, key)}" for key in keys[recipe_name(settings)]]
        label = " ".join([recipe_name(settings), *words])
        out.append(label if label not in out else f"{label} #{len(out) + 1}")
    return out


def named_keys(groups: Sequence[Settings]) -> list[str]:
    """Return the keys that appear in at least one label, in the order of `differing_keys`."""
    keys = set(chain.from_iterable(keys_by_recipe(groups).values()))
    return [key for key in differing_keys(groups) if key in keys]


def recipe_name(settings: Settings) -> str:
    """Return the name of the recipe."""
    return str(settings.get("recipe", "unknown"))


def keys_by_recipe(groups: Sequence[Settings]) -> dict[str, list[str]]:
    """Return the name of each recipe with the keys that distinguish its groups."""
    members: dict[str, list[Settings]] = defaultdict(list)
    for settings in groups:
        members[recipe_name(settings)].append(settings)
    return {recipe: distinguishing_keys(same) for recipe, same in members.items()}


def distinguishing_keys(groups: Sequence[Settings]) -> list[str]:
    """Return a short list of keys that together distinguish these groups.

    Keys that all groups have are preferred. If more than MAX_NAMED keys differ, `fewest_keys` selects some of them.
    """
    keys = without_copies(groups, differing_keys(groups))
    everywhere = [key for key in keys if all(key in settings for settings in groups)]
    if tells_apart(groups, everywhere):
        keys = everywhere
    return keys if len(keys) <= MAX_NAMED else fewest_keys(groups, keys)


def differing_keys(groups: Sequence[Settings]) -> list[str]:
    """Return each key whose value is not the same in all groups.

    Keys that exist in every group come first. These and the others are each sorted by nesting depth, then by name.
    """
    keys = {key for settings in groups for key in settings}
    differ = [key for key in keys if len(set(column(groups, key))) > 1]
    return sorted(differ, key=lambda key: (any(key not in s for s in groups), key.count("."), key))


def without_copies(groups: Sequence[Settings], keys: Sequence[str]) -> list[str]:
    """Drop each key whose value equals that of an earlier key in every group: it shows no further difference."""
    first: dict[tuple[str, ...], str] = {}
    for key in keys:
        first.setdefault(column(groups, key), key)
    return list(first.values())


def fewest_keys(groups: Sequence[Settings], keys: Sequence[str]) -> list[str]:
    """Choose keys greedily until they distinguish all groups. Each step adds the key that distinguishes most groups."""
    selected: list[str] = []
    while not tells_apart(groups, selected):
        selected.append(
            max((key for key in keys if key not in selected), key=lambda key: distinct_count(groups, [*selected, key]))
        )
    return selected


def tells_apart(groups: Sequence[Settings], keys: Sequence[str]) -> bool:
    """Return whether no two groups have the same values for all of these keys."""
    return distinct_count(groups, keys) == len(groups)


def distinct_count(groups: Sequence[Settings], keys: Sequence[str]) -> int:
    """Return the number of different value combinations that the groups have for these keys."""
    return len({tuple(comparable_value(settings, key) for key in keys) for settings in groups})


def column(groups: Sequence[Settings], key: str) -> tuple[str, ...]:
    """Return the value of one setting in each group, as text that can be compared."""
    return tuple(comparable_value(settings, key) for settings in groups)


def comparable_value(settings: Settings, key: str) -> str:
    """Return one setting as text that can be compared, or "-" if the group does not have it."""
    return json.dumps(settings[key], default=str) if key in settings else "-"


def format_value(settings: Settings, key: str) -> str:
    """Return one setting as a user would write it. A class path is shortened to its last component."""
    value = settings.get(key)
    if not isinstance(value, str):
        return comparable_value(settings, key)
    return value.split(".")[-1] if isinstance(value, ClassPath) else value
