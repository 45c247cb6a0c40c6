"""Find the first setting that differs between two peers or two starts of a run, and describe it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outerloop.types import UserError, printable

Settings = Mapping[str, Any]


def first_difference(ours: Settings, theirs: Settings) -> str | None:
    """Return the key of the first setting that differs, or None if all are equal.

    The recipe is compared first, then keys with fewer dots; keys with equally many dots are in alphabetical order.
    """
    keys = sorted(ours.keys() | theirs.keys(), key=lambda key: (key != "recipe", key.count("."), key))
    return next((key for key in keys if ours.get(key) != theirs.get(key)), None)


def format_setting(settings: Settings, key: str) -> str:
    """Format a setting's value as on the command line."""
    return json.dumps(settings.get(key)).strip('"')


def describe_difference(ours: Settings, theirs: Settings, peer: str) -> str:
    """Return a message that names the first setting that differs and what to do, or an empty string if none differs."""
    key = first_difference(ours, theirs)
    if key is None:
        return ""
    local, remote = format_setting(ours, key), format_setting(theirs, key)[:200]
    return f"{printable(key[:200])} is {local} here and {remote} at {peer}: set the same options everywhere"


def refuse_different(ours: Settings, theirs: Settings, peer: str) -> None:
    """Raise UserError, naming the first setting that differs, if a peer's settings differ from this peer's."""
    if message := describe_difference(ours, theirs, peer):
        raise UserError(message)
