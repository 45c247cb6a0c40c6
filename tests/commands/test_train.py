"""`outerloop train` in an empty folder, with the default exchange and without a run_dir, as a newcomer types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ["model=nano", "workers=2", "rounds=1", "schedule.sync_every=2", "eval.sequences=8", "inner.batch=2"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_default_command_trains_a_new_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "outerloop", "train", *SMALL, "threads=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = (tmp_path / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["rounds"] == 1
