"""What a swarm peer shows of itself to whoever looks on (`outerloop status`): its last round, its loss, its speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from outerloop.swarm.membership.status import Status


class PeerStatusSink:
    """Keeps one worker's status up to date from its rows.

    Args:
        show: where it goes after each step and round; it may drop some.
    """

    def __init__(self, show: Callable[[Status], None]) -> None:
        self.show, self.status = show, Status()

    def write(self, row: dict[str, Any]) -> None:
        """One row."""
        if row["event"] == "step":
            self.status = replace(self.status, loss=row["loss"], tokens_per_s=row["tokens_per_s"])
        elif row["event"] == "round":
            self.status = replace(self.status, round=row["round"], peers=row["peers"] if row["took_part"] else 0)
        else:
            return
        self.show(self.status)
