"""Bring values from records into a form that JSON and the page can show: finite numbers, short printable texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from outerloop.types import printable
from outerloop.watch.model.page import Number

MAX_TEXT = 300
"""Maximum number of characters of a text on the page. Peers choose names, and rows contain whole error messages."""
MAX_COUNT = 1 << 62
"""Largest count that is shown; larger ones are replaced by it."""


def shown(value: Any) -> Number:
    """Return a number, the text "nan", "inf" or "-inf" for a number that JSON lacks, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return max(-MAX_COUNT, min(MAX_COUNT, value))
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def rounded(value: Any) -> Number:
    """Return `shown(value)`, a number with a fraction to six significant digits."""
    number = shown(value)
    return float(f"{number:.6g}") if isinstance(number, float) else number


def finite(value: Any) -> float | None:
    """Return a number that can be added and drawn, or None if the value is not a finite number."""
    seen = shown(value)
    return None if seen is None or isinstance(seen, str) else float(seen)


def count(value: Any) -> int:
    """Return a whole number of at least 0, or 0 if the value is not a finite number."""
    return max(0, min(MAX_COUNT, int(finite(value) or 0)))


def text(value: Any, limit: int = MAX_TEXT) -> str:
    """Return a text on one line: control characters escaped, "…" in place of what exceeds `limit` characters."""
    line = printable(str(value)[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def peer_id(name: str) -> str:
    """Return the peer id in a peer's name, or the name itself if it contains none."""
    return name.partition("-")[2] or name


def short_name(name: str) -> str:
    """Shorten a peer name to its worker index and the end of its peer id: all peer ids begin with the same letters."""
    return name if len(name) <= 16 else f"{name[:3]}-…{name[-8:]}"


def setting(settings: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return one setting, or `default` if it is missing or null."""
    value = settings.get(key)
    return default if value is None else value
