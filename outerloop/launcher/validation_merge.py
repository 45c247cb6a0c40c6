"""Merge the workers' shares of an evaluation, each over its own part of the validation windows, into one row."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


class Shares:
    """A collector of evaluation shares.

    An evaluation is complete once every worker has sent its share, has reported a later round, or has left or died.
    """

    def __init__(self, workers: Iterable[int]) -> None:
        self.given: dict[int, dict[int, Row]] = {}
        self.reached: dict[int, float] = dict.fromkeys(workers, -1)  # the last round that each worker reported

    def take(self, event: Row) -> list[Row]:
        """Process one worker's event. Return the rows of the evaluations that it completes."""
        if event["event"] == "eval":
            self.given.setdefault(event["round"], {})[event["worker"]] = event
        elif event["event"] == "round":
            self.reached[event["worker"]] = event["round"]
        elif event["event"] in ("died", "left"):
            self.reached[event["worker"]] = math.inf
        whole = [round for round in sorted(self.given) if self.is_whole(round)]
        return [together(self.given.pop(round)) for round in whole]

    def is_whole(self, round: int) -> bool:
        """Return whether no further share of this round's evaluation can arrive."""
        return all(worker in self.given[round] or last > round for worker, last in self.reached.items())


def together(shares: dict[int, Row]) -> Row:
    """Return the metrics row of one evaluation, merged from its shares."""
    last = list(shares.values())[-1]
    predicted = sum(share["predicted"] for share in shares.values())
    return {
        "event": "validation",
        "step": last["step"],
        "round": last["round"],
        "tokens": sum(share["tokens"] for share in shares.values()),
        "val_loss": sum(share["nats"] for share in shares.values()) / predicted,
        **{name: last[name] for name in ("spread", "replicas") if last.get(name) is not None},
    }
