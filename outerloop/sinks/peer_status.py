"""Update the status that a swarm peer publishes for `outerloop status`: last round, loss, speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from outerloop.swarm.membership.status import Status


class PeerStatusSink:
    """A sink that updates one worker's status from its rows.

    Args:
        show: function that publishes the status. It is called after each step and round, and may skip updates.
    """

    def __init__(self, show: Callable[[Status], None]) -> None:
        self.show, self.status = show, Status()

    def write(self, row: dict[str, Any]) -> None:
        """Update the status from a row of a step or round, and publish it."""
        if row["event"] == "step":
            self.status = replace(self.status, loss=row["loss"], tokens_per_s=row["tokens_per_s"])
        elif row["event"] == "round":
            peers = 0 if row["failed"] else row["peers"]
            self.status = replace(self.status, round=row["round"], peers=peers, counted=row["took_part"])
        else:
            return
        self.show(self.status)
