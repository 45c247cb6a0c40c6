"""Shares of one evaluation, each worker's own part of the validation windows, put together to one number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


class Shares:
    """An evaluation is whole when every worker that can still give its share has: who died, or was away, cannot."""

    def __init__(self, workers: Iterable[int]) -> None:
        self.given: dict[int, dict[int, Row]] = {}
        self.reached: dict[int, float] = dict.fromkeys(workers, -1)  # the last round that each worker told of

    def take(self, event: Row) -> list[Row]:
        """One worker's event; the evaluations that it completes."""
        if event["event"] == "eval":
            self.given.setdefault(event["round"], {})[event["worker"]] = event
        elif event["event"] == "round":
            self.reached[event["worker"]] = event["round"]
        elif event["event"] in ("died", "left"):
            self.reached[event["worker"]] = math.inf
        whole = [round for round in sorted(self.given) if self.is_whole(round)]
        return [together(self.given.pop(round)) for round in whole]

    def is_whole(self, round: int) -> bool:
        """Whether nobody's share can still come."""
        return all(worker in self.given[round] or last > round for worker, last in self.reached.items())


def together(shares: dict[int, Row]) -> Row:
    """The row of one evaluation."""
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
