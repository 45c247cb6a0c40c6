"""Compute the record of a run of bench_faults.py from the metrics of its machines, and compare two records.

.venv/bin/python scripts/faults_report.py FILE...     print the cost of kills in published records
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from faults_deck import KINDS, MISBEHAVIOURS

Row = dict[str, Any]
OVER = ("thawed", "behaves again", "kill", "interrupt")
"""Events that end a period in which a machine is frozen or sends unusable payloads."""


def report(machines: Sequence[Sequence[Row]], first_seen: dict[int, float], events: list[Row]) -> Row:
    """Return the record of a run: metrics of all machines, the times at which rounds first landed, and the events."""
    numbers = sorted(first_seen)
    seconds = [first_seen[number] - first_seen[numbers[0]] for number in numbers]
    gaps = [b - a for a, b in pairwise(seconds)]
    landed = [row for rows in machines for row in rows if row["event"] == "round" and not row["failed"]]
    return {
        "workers": len(machines),
        "rounds": numbers[-1],
        "minutes": seconds[-1] / 60,
        "round_s_median": statistics.median(gaps),
        "round_s_longest": max(gaps),
        "events": events,
        "round_numbers": numbers,
        "round_seen_s": [round(s, 2) for s in seconds],
        "fault_costs_s": fault_costs_s(seconds, events),
        "hashes_by_round_differ": differing(landed),
        "contributed": contributed(landed, numbers),
        "losses": [losses(rows) for rows in machines],
    }


def fault_costs_s(seconds: list[float], events: list[Row]) -> dict[str, list[float]]:
    """Return a map from kind of fault to the cost in seconds of each such fault.

    A cost is the duration of all rounds from the fault to the next fault, minus their number times the median.

    Measuring only the round of the fault is not enough: a fault late in a round delays the next round, a freeze may
    delay several rounds, and all machines wait again when the faulty machine returns.
    """
    usual, costs = statistics.median(b - a for a, b in pairwise(seconds)), defaultdict(list)
    faults = [event for event in events if event["kind"] in KINDS and event["s"] < seconds[-1]]
    starts = [next(i for i, s in enumerate(seconds) if s > event["s"]) - 1 for event in faults]
    for event, (start, end) in zip(faults, pairwise([*starts, len(seconds) - 1]), strict=True):
        costs[event["kind"]].append(round(seconds[end] - seconds[start] - (end - start) * usual, 2))
    return dict(costs)


def kill_costs_s(record: Row) -> dict[str, list[float]]:
    """Return the cost of each kill: the longer of two rounds (that of the kill, the next) minus the median round time.

    The list `alone` holds the costs of kills in rounds without a frozen machine or unusable payloads, `beside` those of
    all other kills.
    """
    ends, spells = record["round_seen_s"], list(bad_spells(record["events"]))
    costs: dict[str, list[float]] = {"alone": [], "beside": []}
    for event in record["events"]:
        at = bisect(ends, event["s"])
        if event["kind"] == "kill" and 0 < at < len(ends):
            rounds = ends[at - 1 : at + 2]
            beside = any(began < rounds[-1] and over > rounds[0] for began, over in spells)
            longest = max(b - a for a, b in pairwise(rounds))
            costs["beside" if beside else "alone"].append(round(longest - record["round_s_median"], 2))
    return costs


def bad_spells(events: list[Row]) -> Iterator[tuple[float, float]]:
    """Yield the start and end of each period in which a machine was frozen or sent unusable payloads."""
    for i, event in enumerate(events):
        if event["kind"] in ("freeze", *MISBEHAVIOURS):
            later = (one for one in events[i + 1 :] if one["machine"] == event["machine"])
            yield event["s"], next((one["s"] for one in later if one["kind"] in OVER), math.inf)


def differing(landed: list[Row]) -> list[int]:
    """Return the rounds after which machines had different slow-weight hashes."""
    seen: dict[tuple[int, int], set[str]] = defaultdict(set)
    for row in landed:
        seen[row["round"], row["fragment"]].add(row["slow_hash"])
    return sorted({number for (number, _), hashes in seen.items() if len(hashes) > 1})


def contributed(landed: list[Row], numbers: list[int]) -> list[int]:
    """Return the cumulative number of included payloads after each round in `numbers`.

    A round counts once, with the number of payloads of its last fragment.
    """
    peers = {(row["round"], row["fragment"]): row["peers"] for row in landed}
    by_round = {number: peers[number, fragment] for number, fragment in sorted(peers)}
    sums, total = [], 0
    for number in numbers:
        total += by_round[number]
        sums.append(total)
    return sums


def losses(rows: Sequence[Row]) -> dict[int, float]:
    """Return the validation loss by round."""
    return {row["round"]: row["val_loss"] for row in rows if row["event"] == "validation"}


def loss_at(record: Row, contributed: int) -> float:
    """Return the loss after `contributed` payloads: the mean over machines, interpolated between evaluations.

    Records of earlier versions have no `round_numbers`; their rounds are numbered from 1.
    """
    numbers = record.get("round_numbers") or range(1, len(record["contributed"]) + 1)
    contributed_by = dict(zip(numbers, record["contributed"], strict=True))
    curve = defaultdict(list)
    for number, loss in ((int(n), loss) for table in record["losses"] for n, loss in table.items()):
        if number in contributed_by:
            curve[contributed_by[number]].append(loss)
    points = sorted((at, statistics.mean(values)) for at, values in curve.items())
    before = max((p for p in points if p[0] <= contributed), default=points[0])
    after = min((p for p in points if p[0] >= contributed), default=points[-1])
    share = (contributed - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
    return before[1] + share * (after[1] - before[1])


def compared(fire: Row, calm: Row) -> Row:
    """Return the losses of two runs at the same number of contributed payloads."""
    at = min(fire["contributed"][-1], calm["contributed"][-1])
    return {"loss": loss_at(fire, at), "calm_loss": loss_at(calm, at), "compared_at": at}


def main() -> None:
    """Print the number of kills, and the median and maximum of their costs in seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    for name in parser.parse_args().files:
        for where, costs in kill_costs_s(json.loads(Path(name).read_text())["fire"]).items():
            if costs:
                print(f"{name}: {len(costs)} {where}, {statistics.median(costs):.1f} s, at most {max(costs):.1f}")


if __name__ == "__main__":
    main()
