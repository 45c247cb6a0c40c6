"""Read the rows of metrics.jsonl, and compute the payload bytes and bits of one worker from them.

    bits = 8 · payload bytes · fragments / payloads / parameters

With fragments, a payload contains one fragment, and a round consists of one payload per fragment. Rounds in which the
worker sent nothing are not counted, so the bits of a worker that joined late are like those of others.

This file imports no torch, so that programs that only read records start quickly.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

FIELDS = {
    "validation": ("step", "round", "tokens", "val_loss"),
    "round": ("worker", "step", "round", "payload_bytes", "bytes_sent", "wait_s"),
    "step": ("worker", "step", "loss"),
}
"""Event -> numeric fields that a row of this event must contain."""
OPTIONAL = ("state_bytes_sent", "wait_s")
"""Fields that must be numbers if a row contains them."""
NULLABLE = ("spread",)
"""Fields that must be numbers or null if a row contains them."""
LOSSES = ("val_loss", "loss", "spread")
"""Fields that may be infinite or NaN: those of a run that diverged."""


def read_rows(path: Path) -> tuple[list[Row], int, str]:
    """Return the rows of metrics.jsonl, the number of damaged lines, and why the file cannot be read, or ""."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return [], 0, ""
    except OSError as error:
        return [], 0, f"{path.name} cannot be read ({error.strerror or error})"
    rows = [parse_row(line) for line in lines if line.strip()]
    good = [row for row in rows if row is not None]
    return good, len(rows) - len(good), ""


def parse_row(line: str) -> Row | None:
    """Parse one line of metrics.jsonl. Return None if the line is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or "event" not in row:
        return None
    names = ("wall_s", "step", *FIELDS.get(str(row["event"]), ()), *(name for name in OPTIONAL if name in row))
    names += tuple(name for name in NULLABLE if row.get(name) is not None)
    whole = has_numbers(row, names) and all(math.isfinite(row[name]) for name in names if name not in LOSSES)
    return row if whole else None


def has_numbers(row: Any, names: Sequence[str]) -> bool:
    """Return whether `row` is a dictionary with a number that a float can represent for each of `names`."""
    return isinstance(row, dict) and all(is_number(row.get(name)) for name in names)


def is_number(value: Any) -> bool:
    """Return whether a value is a float or an integer in the range of floats."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max)


def bits_per_param(payload_bytes: int, payloads: int, *, fragments: int, params: int) -> float:
    """Return the payload bits per parameter and round of one worker, or 0 if it has sent no payload.

    Args:
        payload_bytes: size of all its payloads together, each counted once.
        payloads: number of its payloads that are not empty.
        fragments: number of payloads per round.
        params: trainable parameters.
    """
    return 8 * payload_bytes * fragments / payloads / params if payloads else 0.0


def sent_payload_bytes(row: Mapping[str, Any]) -> float:
    """Return the payload bytes that a worker had sent by a row `round` or `done`, counting every copy.

    These are its `bytes_sent` without its `state_bytes_sent`: the state of the run, which only newcomers download.
    """
    return row["bytes_sent"] - row.get("state_bytes_sent", 0)
