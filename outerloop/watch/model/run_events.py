"""Turn the rows of a run into events for the log: who joined, left, was killed, diverged, was refused or caught up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outerloop.watch.model.event_log import EventLog
from outerloop.watch.model.page import EventKind
from outerloop.watch.model.values import count, finite
from outerloop.watch.model.worker import Worker, status_line

Row = Mapping[str, Any]
KINDS: list[tuple[re.Pattern[str], EventKind]] = [
    (re.compile(r"^left out, "), "refused"),
    (re.compile(r"has weights that differ from those of most peers"), "diverged"),
    (re.compile(r"^out of step with the other peers"), "diverged"),
    (re.compile(r"^waiting: "), "waiting"),
    (re.compile(r"^audit of round "), "audited"),
]
"""Pattern of a status line -> kind of its event. The first match decides; a line that matches no pattern is a note."""
ACCUSED = re.compile(r"^\S+ is accused: it ")
"""Pattern of a status line that only repeats a row `accusation`, and is therefore skipped."""


def add_event(log: EventLog, row: Row, worker: Worker | None) -> None:
    """Append the event that a row reports, if any. `worker`: the worker of the row, already updated from the row."""
    is_expected = row["event"] == "left" and worker is not None and worker.state in ("finished", "died")
    found = None if is_expected else event_of(row)
    if found is not None:
        kind, what = found
        log.add(finite(row.get("wall_s")), kind, what, peer=worker.name if worker else "")


def event_of(row: Row) -> tuple[EventKind, str] | None:
    """Return the kind and text of the event that a row reports, or None if it reports none."""
    match row["event"]:
        case "ready":
            return "joined", f"joined at inner step {count(row.get('step'))}"
        case "accusation":
            return "accused", f"{row.get('peer')} {row.get('why')}, by the scores of round {count(row.get('round'))}"
        case "status" if ACCUSED.match(status_line(row)):
            return None
        case "status":
            return status_kind(line := status_line(row)), line
        case "state":
            return "caught up", "downloaded the state of the run from other peers"
        case "round" if row.get("failed"):
            return "failed", f"round {count(row.get('round'))}: {row['failed']}"
        case "saved" if not row.get("worker"):
            return "saved", f"checkpoint after inner step {count(row.get('step'))}"
        case "done":
            return "finished", "finished its last round"
        case "left":
            return "left", "its process has ended"
        case "died" | "error":
            return "killed", last_line(row)
    return None


def status_kind(line: str) -> EventKind:
    """Return the kind of event that a status line reports."""
    return next((kind for pattern, kind in KINDS if pattern.search(line)), "note")


def last_line(row: Row) -> str:
    """Return the last line of an error, which states its reason."""
    lines = str(row.get("text") or "").strip().splitlines()
    return lines[-1] if lines else "ended without a message"
