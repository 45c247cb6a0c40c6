"""Compare the seconds per round that the planner predicts with measured ones.

    .venv/bin/python scripts/check_plan.py --rows FILE [--machine-mbit 1064] [--json FILE]

A row is a flat record: peers, mbit (rate of every link in each direction), delay_ms (one way), exchange (gather or
gossip), fragments, payload_bytes (all fragments of a round together), inner_s (seconds of one inner step), sync_every,
method, measured_round_s and, if known, delay_steps, launch_s and land_s. The planner is given the measured times of an
inner step, a launch and a landing. Rows without a rate cap are skipped, because the CPU is then the bottleneck. If all
hosts run on one machine, the CPU may also limit rows with a high cap. In that case, pass the total rate of all hosts as
--machine-mbit. bench_gather.py measures it: the bytes of all payloads, divided by the seconds of their transfer.
Without --machine-mbit, each host is assumed to run on its own machine.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import median

from result_rows import Row, show

from outerloop.plan.forecast import forecast
from outerloop.plan.links import HOST_BITS, payload_links
from outerloop.plan.scenario import Fleet, Method


def predicted_s(row: Row, machine_bits: float) -> float:
    """Return the predicted seconds per round of hosts that together transfer at most `machine_bits` bits/s."""
    fragments = row["fragments"]
    codec_s = row.get("launch_s", 0.0) + row.get("land_s", 0.0)
    method = Method(
        name=row["method"],
        exchange=row["exchange"],
        sync_every=row["sync_every"],
        delay=row.get("delay_steps", 0),
        fragments=fragments,
        payload_bytes=row["payload_bytes"] / fragments,
        params=row.get("params", 1.0),
        memory={},
        state_bytes=0.0,
    )
    links = payload_links(
        1e6 * row["mbit"],
        1e6 * row["mbit"],
        1e-3 * row["delay_ms"],
        host_bits=min(HOST_BITS, machine_bits / row["peers"]),
    )
    return forecast(Fleet(row["peers"], links, row["inner_s"], codec_s=codec_s / fragments), method).round_s


def compared(rows: list[Row], machine_bits: float = math.inf) -> list[Row]:
    """Return the predicted and measured seconds per round of each row with a rate cap, and their ratio."""
    kept = ("method", "peers", "mbit", "delay_ms", "payload_bytes", "sync_every", "delay_steps", "measured_round_s")
    found = []
    for row in (row for row in rows if row["mbit"]):
        predicted = predicted_s(row, machine_bits)
        one = {name: row[name] for name in kept if name in row}
        found.append(one | {"predicted_round_s": predicted, "ratio": predicted / row["measured_round_s"]})
    return found


def main() -> None:
    """Print one line per row, then the errors of the predictions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE")
    parser.add_argument("--machine-mbit", type=float, default=math.inf)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    found = compared(json.loads(args.rows.read_text()), 1e6 * args.machine_mbit)
    for row in found:
        show(row)
    off = [abs(row["ratio"] - 1) for row in found]
    print(f"{len(off)} rows, {sum(x <= 0.2 for x in off)} within 20 %: median {median(off):.1%}, worst {max(off):.1%}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
