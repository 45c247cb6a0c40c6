"""Rows of benchmarks as people read them: a line each, floats in four digits."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

Row = dict[str, Any]


def show(row: Row, *, but: Collection[str] = ()) -> None:
    """Print one row at once, without some of its fields."""
    print("  ".join(f"{name} {shown(value)}" for name, value in row.items() if name not in but), flush=True)


def shown(value: Any) -> str:
    """Four digits of a float."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
