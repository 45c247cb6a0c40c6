"""AXIS compress: how a tensor is encoded for the network. One algorithm per file; codecs can be nested.

The functions in this file check the names of received parts. A codec refuses parts that its encoder never sends.
Otherwise, peers would download them in each round, without any effect.
"""

from __future__ import annotations

from outerloop.types import Parts

PREFIX = "values."
"""Prefix of the names of the parts that a nested codec encodes."""


def check_names(parts: Parts, *names: str) -> None:
    """Raise ValueError unless the parts have exactly these names, in this order."""
    if tuple(parts) != names:
        raise ValueError(f"the parts are {list(parts)}, expected {list(names)}")


def parts_behind(first: str, parts: Parts) -> Parts:
    """Return all parts but the one called `first`. Raises ValueError unless that one comes first."""
    if next(iter(parts), None) != first:
        raise ValueError(f"the first part must be {first!r}; the parts are {list(parts)}")
    return {name: part for name, part in parts.items() if name != first}


def nested_parts(first: str, parts: Parts) -> Parts:
    """Return the parts of a nested codec, without the prefix, which all parts must have but the one called `first`.

    Raises ValueError if another part lacks the prefix, or if the first part is another one.
    """
    nested = parts_behind(first, parts)
    if not all(name.startswith(PREFIX) for name in nested):
        raise ValueError(f"all parts but {first!r} must start with {PREFIX!r}; the parts are {list(parts)}")
    return {name.removeprefix(PREFIX): part for name, part in nested.items()}


def with_prefix(parts: Parts) -> Parts:
    """Return the parts of a nested codec with the prefix in their names."""
    return {PREFIX + name: part for name, part in parts.items()}
