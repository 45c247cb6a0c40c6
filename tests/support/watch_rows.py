"""Rows of a run for the page of `outerloop watch`, with numbers that can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outerloop.watch.model.page import Page
from outerloop.watch.model.run_state import RunState, Surroundings

Row = dict[str, Any]
H, TOKENS, PARAMS, PAYLOAD = 4, 64, 1000, 125
"""Inner steps a round, tokens a step and worker, parameters, and payload bytes a round (1 bit per parameter)."""
ROUND_S, WAIT_S, LAND_S = 10.0, 2.0, 0.5
"""Seconds between two landings, and of these the first worker's waiting and landing."""
SETTINGS = {
    "recipe": "sparseloco",
    "workers": 2,
    "rounds": 10,
    "schedule.sync_every": H,
    "schedule.delay": 0,
    "inner.seq_len": 32,
    "model._target_": "outerloop.inner.models.llama",
    "model.layers": 4,
}
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=document.title='owned'>\x1b[31m\u202e"


def ready(worker: int, name: str) -> Row:
    return {"event": "ready", "worker": worker, "step": 0, "params": PARAMS, "size": 2, "peer": name, "wall_s": 0.0}


def steps(worker: int, number: int, *, loss: float) -> list[Row]:
    """The inner steps of one round of one worker."""
    begin_s = ROUND_S * (number - 1)
    return [
        {
            "event": "step",
            "worker": worker,
            "step": step,
            "loss": loss,
            "lr": 0.1,
            "tokens": TOKENS * step,
            "tokens_per_s": 100.0,
            "wall_s": begin_s + 1 + (step - H * (number - 1)),
        }
        for step in range(H * (number - 1) + 1, H * number + 1)
    ]


def landed(worker: int, number: int, *, late_s: float = 0.0, **changes: Any) -> Row:
    """A round that has landed. A worker that was late waited less for the others."""
    row = {
        "event": "round",
        "worker": worker,
        "step": H * number,
        "round": number,
        "fragment": 0,
        "failed": "",
        "peers": 2,
        "alive": 2,
        "expected": 2,
        "took_part": True,
        "refused": 0,
        "payload_bytes": PAYLOAD,
        "launch_s": 0.25,
        "wait_s": WAIT_S - late_s,
        "land_s": LAND_S,
        "compute_s": 6.0,
        "communication_s": 1.0,
        "others_s": 1.0,
        "utilization": 0.75,
        "bytes_sent": 2 * PAYLOAD * number,
        "wall_s": ROUND_S * number,
    }
    return row | changes


def run_rows(rounds: int = 3, *, names: tuple[str, str] = ("000-a", "001-b"), late_s: float = 1.5) -> list[Row]:
    """Two workers; the second is `late_s` late in every round. A validation follows each round."""
    rows = [ready(worker, name) for worker, name in enumerate(names)]
    for number in range(1, rounds + 1):
        for worker in range(2):
            rows += steps(worker, number, loss=5.0 - number + worker)
        rows += [landed(0, number), landed(1, number, late_s=late_s)]
        whole = {"event": "validation", "step": H * number, "round": number, "tokens": 2 * TOKENS * H * number}
        rows.append({**whole, "val_loss": 5.0 - number, "wall_s": ROUND_S * number + 0.1})
    return rows


def status(worker: int, text: str, *, step: int = 0, wall_s: float = 99.0) -> Row:
    return {"event": "status", "worker": worker, "step": step, "text": text, "wall_s": wall_s}


def said(worker: int, text: str) -> Row:
    """A status line of a worker's exchange, which begins with the number of the worker."""
    return status(worker, f"worker {worker} {text}")


def state_of(rows: list[Row], settings: dict[str, Any] | None = None) -> RunState:
    state = RunState(SETTINGS if settings is None else settings)
    for row in rows:
        state.add(row)
    return state


def page_of(rows: list[Row], **around: Any) -> Page:
    return state_of(rows).page(Surroundings(**{"name": "mine", "now_s": 100.0, "updated_s": 99.0} | around))


def write_run(folder: Path, rows: list[Row], *, finished: bool = False) -> Path:
    """A run directory with these rows."""
    folder.mkdir(parents=True)
    lines = [
        "recipe: sparseloco",
        "workers: 2",
        "rounds: 10",
        "schedule:",
        f"  sync_every: {H}",
        "inner:",
        "  seq_len: 32",
    ]
    (folder / "config.yaml").write_text("\n".join(lines) + "\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        numbers = {"val_loss": 2.0, "bits_per_param_per_round": 1.0, "bytes_sent_per_worker": 2 * PAYLOAD * 3}
        (folder / "summary.json").write_text(json.dumps({**numbers, "tokens": 1536, "wait_s": 6.0, "wall_s": 30.0}))
    return folder


def many_peers(count: int, rounds: int = 50) -> list[Row]:
    """Rows of `count` workers that have all landed `rounds` rounds; every seventh is late."""
    rows = [ready(worker, f"{worker:03d}-12D3KooW{worker:044d}") for worker in range(count)]
    for number in range(1, rounds + 1):
        rows += [landed(w, number, late_s=(w % 7 == 0) * 1.0, expected=count, alive=count) for w in range(count)]
    return rows
