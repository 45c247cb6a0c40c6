"""Whether two sets of settings are the same, and which one differs if they are not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outerloop.types import UserError

Settings = Mapping[str, Any]


def first_difference(ours: Settings, theirs: Settings) -> str | None:
    """The key of the first setting that differs: the recipe, else an axis before what is in it, else by name."""
    keys = sorted(ours.keys() | theirs.keys(), key=lambda key: (key != "recipe", key.count("."), key))
    return next((key for key in keys if ours.get(key) != theirs.get(key)), None)


def shown(settings: Settings, key: str) -> str:
    """A setting as it is typed."""
    return json.dumps(settings.get(key)).strip('"')


def refuse_different(ours: Settings, theirs: Settings, peer: str) -> None:
    """Raises UserError naming the first setting that a peer has otherwise."""
    key = first_difference(ours, theirs)
    if key is not None:
        here, there = shown(ours, key), shown(theirs, key)[:200]
        raise UserError(f"{key[:200]} is {here} here and {there} at {peer}: type the same options everywhere")
