"""What runs of `outerloop train` have told: where others meet them, and what they came to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest


def address_in(text: str) -> str | None:
    """What others type to meet a first peer, `exchange.initial_peers=[...]`, once it has told."""
    told = re.search(r"exchange\.initial_peers=\[\S+\]", text)
    return told and told[0]


def summary_of(run_dir: Path) -> dict[str, Any]:
    """summary.json of a finished run."""
    return json.loads((run_dir / "summary.json").read_text())


def leave_figures_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs in this process write an empty loss.png. tests/launcher/test_train.py draws those of all recipes."""
    monkeypatch.setattr("outerloop.report.run_figure.draw_run", lambda rows, summary, path: path.touch())
