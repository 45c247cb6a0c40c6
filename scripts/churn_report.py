"""Compute the record of a run of bench_churn.py from the rows of all processes, and check it.

A row is one line of a process's metrics.jsonl. Rows of a process may occur twice, because a process that returns writes
its earlier rows again.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

Row = dict[str, Any]
Landed = dict[int, Row]
"""Round -> row of one process that landed it."""
AROUND = 10
"""A gap is compared with the median of itself, this many gaps before it, and this many gaps after it."""
LOSS_LIMIT = 0.02
"""Fraction by which the loss may exceed the loss of the calm run after the same number of payloads."""


def landed_rounds(rows: Sequence[Row]) -> Landed:
    """Return the rows of the rounds that one process landed. If a round has two rows, the later one is used."""
    return {row["round"]: row for row in rows if row["event"] == "round" and not row["failed"]}


def gaps(seen_s: Sequence[float], events: Sequence[Row], *, limit_s: float) -> Row:
    """Return the distribution of the times between landed rounds, and the stops that were too long.

    seen_s: time in seconds at which each round first landed; at least two, ascending. A stop is the time by which a gap
    exceeds the median of the gaps around it. `too_long` lists each stop of more than `limit_s` seconds, with the events
    in that gap and in the one before it.
    """
    all_s = [b - a for a, b in pairwise(seen_s)]
    stops_s = [gap - statistics.median(all_s[max(0, i - AROUND) : i + AROUND + 1]) for i, gap in enumerate(all_s)]
    too_long = [
        {
            "at_s": round(seen_s[i], 1),
            "gap_s": round(all_s[i], 2),
            "stop_s": round(stop, 2),
            "events": [event for event in events if seen_s[max(0, i - 1)] <= event["s"] < seen_s[i + 1]],
        }
        for i, stop in enumerate(stops_s)
        if stop > limit_s
    ]
    ordered = sorted(all_s)
    shares = {percent: ordered[percent * (len(ordered) - 1) // 100] for percent in (50, 90, 99)}
    return {
        "limit_s": limit_s,
        **{f"percentile_{percent}_s": round(value, 2) for percent, value in shares.items()},
        "longest_s": round(ordered[-1], 2),
        "longest_stop_s": round(max(stops_s), 2),
        "too_long": too_long,
    }


def totals(processes: Sequence[Landed], *, survivors: Collection[int]) -> Row:
    """Return how many payloads the rounds counted, and where the processes' records disagree about that.

    rounds, payloads        number of rounds, and the sum of their `peers` (payloads counted in a round)
    own_payloads            number of rows in which a process reports that its own payload counted
    not_landed_by_owner     payloads - own_payloads: payloads whose owners left before landing the round
    survivor_payloads       payloads in the rounds that all survivors landed, as recorded by each of them
    missing                 rounds up to the last one that no process landed
    disagreeing             rounds whose peers, commit or slow-weight hash differ between processes
    unaccounted             rounds whose number of payloads is impossible: lower than the number of processes whose
                            own payload counted, or higher than that plus the number of processes without a row of the
                            round
    """
    by_round: dict[int, list[Row]] = defaultdict(list)
    for landed in processes:
        for number, row in landed.items():
            by_round[number].append(row)
    peers = {number: rows[0]["peers"] for number, rows in by_round.items()}
    own = {number: sum(row["took_part"] for row in rows) for number, rows in by_round.items()}
    common = set(by_round).intersection(*(processes[i] for i in survivors))
    return {
        "rounds": len(by_round),
        "payloads": sum(peers.values()),
        "own_payloads": sum(own.values()),
        "not_landed_by_owner": sum(peers.values()) - sum(own.values()),
        "survivors": len(survivors),
        "rounds_of_all_survivors": len(common),
        "survivor_payloads": {i: sum(processes[i][number]["peers"] for number in common) for i in survivors},
        "missing": sorted(set(range(1, max(by_round, default=0))) - set(by_round)),
        "disagreeing": sorted(number for number, rows in by_round.items() if len(set(map(outcome, rows))) > 1),
        "unaccounted": sorted(
            number
            for number, rows in by_round.items()
            if not own[number] <= peers[number] <= own[number] + len(processes) - len(rows)
        ),
    }


def outcome(row: Row) -> tuple[Any, ...]:
    """Return the values of a round's row that must be equal on all peers."""
    return row["peers"], row["commit"], row["slow_hash"]


def errors(processes: Sequence[Sequence[Row]]) -> list[Row]:
    """Return each error and death that a process recorded, with the number of the process. Repeated rows count once."""
    found = {
        (i, row["wall_s"], row["event"], row["text"])
        for i, rows in enumerate(processes)
        for row in rows
        if row["event"] in ("error", "died")
    }
    return [{"process": i, "event": event, "text": text} for i, _, event, text in sorted(found)]


def failed_rounds(processes: Sequence[Sequence[Row]]) -> dict[str, int]:
    """Return how often a round failed at a process, by reason, summed over all processes."""
    found = {
        (i, row["round"], row["failed"])
        for i, rows in enumerate(processes)
        for row in rows
        if row["event"] == "round" and row["failed"]
    }
    return dict(Counter(reason for _, _, reason in found))


def checks(record: Row) -> dict[str, bool]:
    """Return whether each property of a run holds. The loss is checked only if it was compared with a calm run."""
    sums, stays = record["totals"], record["stays"]
    found = {
        "rounds never stop for longer than the grace period and one view": not record["gaps"]["too_long"],
        "rounds landed to the end": not record["aborted"],
        "records of all processes agree": not sums["disagreeing"] and not sums["missing"],
        "all survivors counted the same payloads": len(set(sums["survivor_payloads"].values())) == 1,
        "payloads add up": not sums["unaccounted"],
        "error rows were not written": not record["errors"],
        "all processes ended as planned": not any(stay["unplanned"] for stay in stays),
        "all processes that stayed made progress": not any(stay["stuck"] for stay in stays),
        "processes were not left behind": not record["left_behind"]["processes"] and not any(s["left"] for s in stays),
        "socket folders were not left behind": not record["left_behind"]["socket_folders"],
    }
    if "calm_loss" in record:
        found["loss within 2 % of the calm run"] = record["loss"] <= (1 + LOSS_LIMIT) * record["calm_loss"]
    return found
