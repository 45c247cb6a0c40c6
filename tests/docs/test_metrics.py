"""docs/reference/metrics.md has every column of metrics.jsonl, and no other."""

import json
import re
import sys
from pathlib import Path

from outerloop.commands import main
from outerloop.exchange.swarm_gossip import SwarmGossip
from outerloop.inner.events import round_fields
from outerloop.report.summary import GOSSIP_COUNTS
from outerloop.swarm.audit import auditor

PAGE = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
EVENTS = ("step", "round", "eval", "validation", "done", "ready")
CREDITED = "credited_rounds", "credited_samples"
SIZES = ["model=nano", "workers=2", "rounds=1", "eval.sequences=8", "inner.batch=2", "schedule.sync_every=4"]


def columns(text: str) -> dict[str, bool]:
    """Return column -> whether rows always have it, from the tables of a part of the page."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)
    return {name: when.strip() == "always" for name, when in rows}


def documented(event: str) -> dict[str, bool]:
    """Return the columns of an event's rows, those of all rows included."""
    common = columns(PAGE.split("\n## ")[0]) | {"worker": event != "validation"}
    (part,) = (part for part in PAGE.split("\n## ") if part.startswith(f"{event}\n"))
    return common | columns(part)


def test_rows_of_a_run_have_the_columns_of_the_page(tmp_path, monkeypatch):
    run = tmp_path / "run"
    options = ["recipe=noloco", *SIZES, "log_every=2", "checkpoint.every=1", f"run_dir={run}"]
    monkeypatch.setattr(sys, "argv", ["outerloop", "train", *options])
    assert main.main() == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {row["event"] for row in rows} >= set(EVENTS)
    for row in rows:
        if row["event"] in EVENTS:
            known = documented(row["event"])
            assert [name for name in row if name not in known] == [], row["event"]
            assert [name for name, always in known.items() if always and name not in row] == [], row["event"]
        else:
            assert f"| `{row['event']}` |" in PAGE
    summary = json.loads((run / "summary.json").read_text())
    assert [name for name in summary if f"`{name}`" not in PAGE] == []


def test_columns_that_depend_on_the_exchange_are_those_of_the_code():
    text = Path(sys.modules[round_fields.__module__].__file__).read_text()
    optional = {name for event in ("round", "done") for name, always in documented(event).items() if not always}
    counted = Path(sys.modules[SwarmGossip.__module__].__file__).read_text()
    counts = {*GOSSIP_COUNTS, *CREDITED, *auditor.COUNTS}
    assert optional == {"partners", "commit", "refused_messages", "state_bytes_sent", "idle_s", *counts}
    counted += Path(auditor.__file__).read_text()
    assert all(f'"{name}"' in text + counted for name in optional)
