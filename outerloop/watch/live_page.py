"""Show a live page of a run while it trains (`outerloop train watch=8080`), in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from outerloop.types import missing_package

STOP_S = 10
"""Seconds to wait for the page's process to end by itself, before it is killed."""


def refuse_without_packages() -> None:
    """Raise UserError if a package that the page needs is not installed."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None and (error := missing_package(package)):
            raise error


@contextmanager
def live_page(run_dir: Path, port: int, say: Callable[[str], None], *, pythonpath: str) -> Iterator[None]:
    """Serve the page of a run on this machine's loopback address during a `with` block.

    `say`: shows a line to the user. `pythonpath`: PYTHONPATH with which this copy of outerloop is imported.

    The page's process ends when its standard input is closed, so it also ends if this process is killed. Ctrl-C does
    not reach it. If it cannot start, for example because the port is in use, it prints one line, and the run continues.
    """
    command = ["watch", str(run_dir), "--port", str(port), "--stop-with-input"]
    page = subprocess.Popen(
        [sys.executable, "-P", "-m", "outerloop", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": pythonpath},
    )
    assert page.stdin is not None
    say(f"live page: http://127.0.0.1:{port}/")
    try:
        yield
    finally:
        page.stdin.close()
        try:
            page.wait(STOP_S)
        except subprocess.TimeoutExpired:
            page.kill()
            page.wait()
