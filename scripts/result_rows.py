"""Print benchmark rows: one line each, floats with four significant digits."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

Row = dict[str, Any]


def show(row: Row, *, but: Collection[str] = ()) -> None:
    """Print one row immediately, without the fields in `but`."""
    print("  ".join(f"{name} {shown(value)}" for name, value in row.items() if name not in but), flush=True)


def shown(value: Any) -> str:
    """Format a value; floats have four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
