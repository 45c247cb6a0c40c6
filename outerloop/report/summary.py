"""Summarize the metrics of a run for summary.json: its losses, time and traffic."""

from __future__ import annotations

from typing import Any

from outerloop.core.utilization import SPENT, utilization
from outerloop.report.metric_rows import bits_per_param

Row = dict[str, Any]
GOSSIP_COUNTS = ("solo_rounds", "dropped_pairs", "one_sided_rounds")


def summarize(rows: list[Row], *, recipe: str, workers: int, rounds: int, params: int) -> Row:
    """Return a flat record of the run. `workers` is the number of workers in the whole swarm.

    `tokens` and `tokens_per_s` cover the workers on this machine. `val_loss*` is in nats per token.
    `bytes_sent_per_worker` counts every copy, and `state_bytes_sent_per_worker` is the part of it that was the state
    of the run to newcomers, if the exchange counts that. `bits_per_param_per_round` is one worker's payload per
    parameter (metric_rows.py), counting every byte of its message, and `ratio_to_fp32` is 32 divided by it; both are 0
    if the worker has sent no payload. `slow_hash` lists the hash of the slow weights of each worker on this machine
    that finished, and `workers_died` the workers that died.

    `compute_s`, `communication_s` and `others_s` are seconds spent in inner steps, in the outer loop's work between
    them, and waiting for other peers between them (inner/run_totals.py), averaged over this machine's finished workers.
    `utilization` is `compute_s` divided by their sum. Runs with gossip also have the number of `replicas`, their final
    `spread`, the counts listed in GOSSIP_COUNTS, summed over this machine's finished workers, and `idle_s`, the mean
    seconds that one of them waited for partners.

    `contributors` lists what each peer of the swarm has contributed (core/contributor_rows.py), if the run counts
    contributions.
    """
    done = sorted((row for row in rows if row["event"] == "done"), key=lambda row: row["worker"])
    spent = {name: mean(row[name] for row in done) for name in SPENT}
    validations = [row for row in rows if row["event"] == "validation"]
    counted = [row for row in rows if row["event"] == "contributors"]
    losses = [row["val_loss"] for row in validations]
    tokens = sum(last_tokens(rows, row["worker"]) for row in done)
    wall_s = rows[-1]["wall_s"]
    bits = sent_bits(rows, done[0]["worker"], params)
    state = [row["state_bytes_sent"] for row in done if "state_bytes_sent" in row]
    return {
        "recipe": recipe,
        "workers": workers,
        "rounds": rounds,
        "rounds_failed": max(row["rounds_failed"] for row in done),
        "params": params,
        "tokens": tokens,
        "val_loss_initial": losses[0],
        "val_loss": losses[-1],
        "bits_per_param_per_round": bits,
        "ratio_to_fp32": 32 / bits if bits else 0.0,
        "payload_bytes_per_worker": mean(row["payload_bytes"] for row in done),
        "bytes_sent_per_worker": mean(row["bytes_sent"] for row in done),
        "wait_s": mean(row["wait_s"] for row in done),
        **spent,
        "utilization": utilization(**spent),
        "wall_s": wall_s,
        "tokens_per_s": tokens / wall_s,
        "slow_hash": [row["slow_hash"] for row in done],
        "workers_died": sorted(row["worker"] for row in rows if row["event"] == "died"),
        **{name: validations[-1][name] for name in ("spread", "replicas") if name in validations[-1]},
        **{name: sum(row[name] for row in done) for name in GOSSIP_COUNTS if name in done[0]},
        **({"contributors": counted[-1]["contributors"]} if counted else {}),
        **({"state_bytes_sent_per_worker": mean(state)} if state else {}),
        **({"idle_s": mean(row["idle_s"] for row in done)} if "idle_s" in done[0] else {}),
    }


def sent_bits(rows: list[Row], worker: int, params: int) -> float:
    """Return the payload bits per parameter and round of a worker, averaged over the rounds in which it sent any."""
    rounds = [row for row in rows if row["event"] == "round" and row["worker"] == worker]
    sizes = [row["payload_bytes"] for row in rounds if row["payload_bytes"]]
    return bits_per_param(sum(sizes), len(sizes), fragments=fragments_in(rounds), params=params)


def fragments_in(rounds: list[Row]) -> int:
    """Return the number of fragments of the model that these rounds exchanged."""
    return max((row["fragment"] for row in rounds), default=0) + 1


def last_tokens(rows: list[Row], worker: int) -> int:
    """Return the number of tokens that a worker has trained on."""
    return max(row["tokens"] for row in rows if row["event"] == "eval" and row["worker"] == worker)


def mean(values: Any) -> float:
    """Return the arithmetic mean."""
    listed = list(values)
    return sum(listed) / len(listed)
