"""What differs between groups of runs, by the settings in their config.yaml, and the label that this gives a group.

A label is the recipe and the settings in which a group differs from the other groups of that recipe, as few as will do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Settings = dict[str, Any]

NOT_TRAINED = [
    "run_dir",
    "log",
    "threads",
    "log_every",
    "checkpoint",
    "workers_as",
    "round_timeout_s",
    "max_failed_rounds",
    "exchange.run",
    "exchange.worker",
    "exchange.identity_path",
    "exchange.initial_peers",
    "exchange.host",
    "exchange.port",
    "exchange.announce",
    "exchange.open_internet",
    "exchange.join_timeout_s",
    "exchange.grace_s",
    "exchange.deadline_s",
    "exchange.fragments",
    "exchange.fingerprint",
    "exchange.settings",
    "exchange.reform",
    "exchange.max_blob_bytes",
]
"""Settings that do not change what is trained, with all that is under them."""
MAX_NAMED = 4
"""A label that would name more settings than this names only those that it takes to tell the groups apart."""


class ClassPath(str):
    """The import path of a class, shown by its last name."""


def trained(settings: Settings) -> Settings:
    """The settings that say what is trained, the seed and what follows it left out: equal within a group.

    A part goes by the name of its class: compress._target_ -> compress, hydra's other words are left out.
    """
    seed = settings.get("seed")
    out: Settings = {}
    for key, value in settings.items():
        if any(f"{key}.".startswith(f"{name}.") for name in NOT_TRAINED):
            continue
        node, _, word = key.rpartition(".")
        if word == "_target_":
            out[node] = ClassPath(value)
        elif not word.startswith("_") and not (word == "seed" and value == seed):
            out[key] = value
    return out


def identity(settings: Settings) -> str:
    """Equal for equal settings."""
    return json.dumps(settings, sort_keys=True, default=str)


def labels(groups: Sequence[Settings]) -> list[str]:
    """One label a group; `groups` are as `trained` returns them, each different."""
    out: list[str] = []
    for settings in groups:
        words = [f"{key}={shown(settings, key)}" for key in telling(family_of(settings, groups))]
        label = " ".join([recipe_of(settings), *words])
        out.append(label if label not in out else f"{label} #{len(out) + 1}")
    return out


def named(groups: Sequence[Settings]) -> list[str]:
    """Every key that some label names, in the order of `differing`."""
    keys = {key for settings in groups for key in telling(family_of(settings, groups))}
    return [key for key in differing(groups) if key in keys]


def recipe_of(settings: Settings) -> str:
    """Name of the recipe."""
    return str(settings.get("recipe", "unknown"))


def family_of(settings: Settings, groups: Sequence[Settings]) -> list[Settings]:
    """The groups of the same recipe, itself included."""
    return [other for other in groups if recipe_of(other) == recipe_of(settings)]


def telling(groups: Sequence[Settings]) -> list[str]:
    """The shortest useful set of keys that tells these groups apart."""
    keys = without_copies(groups, differing(groups))
    everywhere = [key for key in keys if all(key in settings for settings in groups)]
    if tells_apart(groups, everywhere):
        keys = everywhere
    return keys if len(keys) <= MAX_NAMED else fewest(groups, keys)


def differing(groups: Sequence[Settings]) -> list[str]:
    """Every key that is not equal in all groups: those that all have first, then the least nested, then by name."""
    keys = {key for settings in groups for key in settings}
    differ = [key for key in keys if len(set(column(groups, key))) > 1]
    return sorted(differ, key=lambda key: (any(key not in s for s in groups), key.count("."), key))


def without_copies(groups: Sequence[Settings], keys: Sequence[str]) -> list[str]:
    """Of keys with the same values throughout (one is made from the other), the first."""
    first: dict[tuple[str, ...], str] = {}
    for key in keys:
        first.setdefault(column(groups, key), key)
    return list(first.values())


def fewest(groups: Sequence[Settings], keys: Sequence[str]) -> list[str]:
    """Keys taken one after the other, each the one that splits most, until all groups are told apart."""
    taken: list[str] = []
    while not tells_apart(groups, taken):
        taken.append(max((key for key in keys if key not in taken), key=lambda key: kinds(groups, [*taken, key])))
    return taken


def tells_apart(groups: Sequence[Settings], keys: Sequence[str]) -> bool:
    """Whether no two groups are equal in these keys."""
    return kinds(groups, keys) == len(groups)


def kinds(groups: Sequence[Settings], keys: Sequence[str]) -> int:
    """How many different groups these keys show."""
    return len({tuple(exact(settings, key) for key in keys) for settings in groups})


def column(groups: Sequence[Settings], key: str) -> tuple[str, ...]:
    """One setting of every group."""
    return tuple(exact(settings, key) for settings in groups)


def exact(settings: Settings, key: str) -> str:
    """One setting, to compare; - where there is no such setting."""
    return json.dumps(settings[key], default=str) if key in settings else "-"


def shown(settings: Settings, key: str) -> str:
    """One setting as it is typed, a class by its last name."""
    value = settings.get(key)
    if not isinstance(value, str):
        return exact(settings, key)
    return value.split(".")[-1] if isinstance(value, ClassPath) else value
