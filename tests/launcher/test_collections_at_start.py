"""Garbage is collected rarely while a program starts, and as usual while it trains."""

import gc
from functools import partial

import pytest

from outerloop.commands import main
from outerloop.config import load
from outerloop.launcher.collections_at_start import RARE, USUAL, collect_as_usual, collect_rarely
from outerloop.launcher.thread_pool import ThreadWorkerPool
from outerloop.launcher.train import train
from tests.support.train_processes import SMALL


@pytest.fixture(autouse=True)
def afterwards():
    yield
    collect_as_usual()


def test_a_command_starts_with_rare_collections(monkeypatch):
    monkeypatch.setattr("sys.argv", ["outerloop", "--version"])
    with pytest.raises(SystemExit):
        main.entry()
    assert gc.get_threshold() == RARE and RARE[0] > USUAL[0]


def test_a_run_trains_with_the_usual_ones(tmp_path):
    collect_rarely()
    seen = []
    pool = partial(ThreadWorkerPool, before_first_step=lambda trainer, corpus: seen.append(gc.get_threshold()))
    train(load.load([*SMALL, "exchange=inprocess", "workers=1", "rounds=1", f"run_dir={tmp_path}/run"]), pool)
    assert seen == [USUAL]
