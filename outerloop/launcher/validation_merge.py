"""Merge the workers' shares of an evaluation into one row. Each share covers some of the validation windows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


class ValidationMerge:
    """Collects the workers' shares of each evaluation.

    An evaluation is complete once every worker has sent its share, reported a later round, left or died.
    """

    def __init__(self, workers: Iterable[int]) -> None:
        self.shares: dict[int, dict[int, Row]] = {}
        self.last_round: dict[int, float] = dict.fromkeys(workers, -1)  # the last round that each worker reported

    def add(self, event: Row) -> list[Row]:
        """Process one worker's event. Return the rows of the evaluations that it completes."""
        if event["event"] == "eval":
            self.shares.setdefault(event["round"], {})[event["worker"]] = event
        elif event["event"] == "round":
            self.last_round[event["worker"]] = event["round"]
        elif event["event"] in ("died", "left"):
            self.last_round[event["worker"]] = math.inf
        complete = [round_id for round_id in sorted(self.shares) if self.is_complete(round_id)]
        return [merge(self.shares.pop(round_id)) for round_id in complete]

    def is_complete(self, round_id: int) -> bool:
        """Return whether no further share of this round's evaluation can arrive."""
        return all(
            worker in self.shares[round_id] or last_round > round_id for worker, last_round in self.last_round.items()
        )


def merge(shares: dict[int, Row]) -> Row:
    """Merge the shares of one evaluation into its "validation" row of metrics.jsonl."""
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
