"""Define the events that a worker emits: flat dictionaries with the keys "event", "worker" and "step".

"event" is one of status, ready, state, step, round, eval, sample, saved, contributors, done. Field names include units
(wait_s).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outerloop.core.round import RoundReport
from outerloop.core.utilization import utilization
from outerloop.exchange_protocols import replicated
from outerloop.protocols import Exchange
from outerloop.types import Contributor

Event = dict[str, Any]


def status_lines(report: RoundReport) -> Iterator[str]:
    """Yield a status line for each refused message, changed setting and diverged peer of a round."""
    for refusal in report.refused:
        yield f"left out, {refusal}"
    yield from report.notes
    for peer in report.diverged:
        yield f"{peer} has weights that differ from those of most peers, and must load theirs"


def round_fields(
    report: RoundReport,
    exchange: Exchange,
    *,
    spent: dict[str, float],
    counters: dict[str, Any],
    credited: Contributor | None = None,
) -> dict[str, Any]:
    """Return the fields of a "round" event.

    Args:
        spent: category -> seconds since the previous round.
        counters: totals of the run (run_totals.py).
        credited: what this peer has contributed to the run so far, if that is counted.
    """
    decided_by_majority = replicated(exchange)
    return {
        "round": report.round.number + 1,
        "fragment": report.round.fragment,
        "failed": report.failed,
        "peers": len(report.peers),
        "alive": exchange.size if decided_by_majority is None else decided_by_majority.alive,
        "expected": exchange.size,
        "took_part": exchange.peer in report.peers,
        "refused": len(report.refused),
        **({} if exchange.info.agrees else {"partners": [peer for peer in report.peers if peer != exchange.peer]}),
        "payload_bytes": report.payload_bytes,
        "launch_s": report.launch_s,
        "wait_s": report.wait_s,
        "land_s": report.land_s,
        **spent,
        "utilization": utilization(**spent),
        "delta_norm": report.delta_norm,
        "mean_norm": report.mean_norm,
        **({"commit": report.commit} if report.commit else {}),
        "slow_hash": f"{report.slow_hash:016x}",
        "bytes_sent": counters["bytes_sent"],
        **({"credited_rounds": credited.rounds, "credited_samples": credited.samples} if credited else {}),
        **{name: counters[name] for name in ("refused_messages", "state_bytes_sent") if name in counters},
    }
