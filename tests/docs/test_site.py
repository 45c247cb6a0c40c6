"""The site builds in strict mode: no page is missing from it, and no link of a page leads nowhere."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/tutorials/sweep/index.html").exists()
    assert (tmp_path / "site/scripts/results/recipes/COMMAND/index.html").exists()
