"""`outerloop train watch=PORT`: the page is there while the run trains, and is gone with it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from outerloop.config import load
from outerloop.types import UserError
from outerloop.watch import live_page
from tests.support.ports import free_port
from tests.support.watch_rows import run_rows, write_run

ROOT = str(Path(__file__).parents[2])
WAIT_S = 120
"""Longest wait for the page to start; the machine may be loaded."""


def answer(port: int) -> dict | None:
    """The content of /status.json, or None if nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=10) as reply:
            return json.load(reply)
    except (urllib.error.URLError, OSError):
        return None


def wait_for(condition) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.1)


@pytest.mark.long
def test_the_page_answers_within_the_block_and_not_after_it(tmp_path: Path):
    folder, port, said = write_run(tmp_path / "mine", run_rows(2)), free_port(), []
    with live_page.live_page(folder, port, said.append, pythonpath=ROOT):
        wait_for(lambda: answer(port))
        page = answer(port)
        assert page is not None and (page["run"]["name"], page["run"]["round"]) == ("mine", 2)
    assert answer(port) is None and said == [f"live page: http://127.0.0.1:{port}/"]


@pytest.mark.long
def test_the_page_does_not_outlive_a_process_that_is_killed(tmp_path: Path):
    folder, port = write_run(tmp_path / "mine", run_rows(1)), free_port()
    code = (
        "import time; from pathlib import Path; from outerloop.watch.live_page import live_page\n"
        f"with live_page(Path({str(folder)!r}), {port}, print, pythonpath={ROOT!r}): time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": ROOT})
    try:
        wait_for(lambda: answer(port))
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: answer(port) is None)


@pytest.mark.long
def test_a_port_in_use_does_not_stop_the_run(tmp_path: Path, capfd):
    folder = write_run(tmp_path / "mine", run_rows(1))
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with live_page.live_page(folder, port, lambda line: None, pythonpath=ROOT):
            wait_for(lambda: "cannot listen on" in capfd.readouterr().err)


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(live_page, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"starlette is not installed: run pip install 'outerloop-train\[watch\]'"):
        live_page.refuse_without_packages()


@pytest.mark.parametrize("port", ["0", "65536", "true", "here"])
def test_a_port_out_of_range_is_refused(port):
    with pytest.raises(UserError, match="watch"):
        load.load([f"watch={port}"])
