"""Keep the last events of a run for the log of the page."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from outerloop.watch.model.page import EventKind, LogEntry
from outerloop.watch.model.values import shown, text

MAX_EVENTS = 300
"""Number of events that are kept; older ones are dropped."""


@dataclass
class EventLog:
    """The last events, oldest first. Events are numbered from 1 so that a page can see which ones are new."""

    entries: deque[LogEntry] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    added: int = 0

    def add(self, time_s: float | None, kind: EventKind, what: str, *, peer: str = "") -> None:
        """Append one event. `what`: its text, in which names that peers chose may contain any characters."""
        self.added += 1
        self.entries.append(
            {"number": self.added, "time_s": shown(time_s), "kind": kind, "peer": text(peer), "text": text(what)}
        )
