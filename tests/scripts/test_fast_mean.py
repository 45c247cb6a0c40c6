"""The loss of the mean of all workers' fast weights: equal to that of the slow weights if these become the mean."""

from functools import partial

import pytest
from fast_mean import FastMean

from outerloop.config import load
from outerloop.launcher.thread_pool import ThreadWorkerPool
from outerloop.launcher.train import train

SMALL = ["model=nano", "workers=2", "eval.sequences=15", "inner.seq_len=32", "inner.batch=4", "exchange=inprocess"]
SMALL += ["recipe=diloco", "steps=8", "schedule.sync_every=4", "method.optimizer.momentum=0"]
SMALL += ["method.optimizer.nesterov=false"]


def losses(run_dir, *options):
    """The losses of the slow weights and of the mean of the fast weights at the end of a run."""
    config = load.load([*SMALL, f"run_dir={run_dir}", *options])
    measured = FastMean(config)
    summary = train(config, partial(ThreadWorkerPool, before_first_step=measured.attach))
    assert measured.seen == 2
    return summary["val_loss"], measured.nats


def test_with_an_outer_step_of_one_the_slow_weights_become_the_mean(tmp_path):
    slow, mean = losses(tmp_path / "one", "method.optimizer.lr=1")
    assert mean == pytest.approx(slow, rel=1e-6)


def test_with_half_an_outer_step_they_differ_and_training_is_as_without_a_measurement(tmp_path):
    slow, mean = losses(tmp_path / "half", "method.optimizer.lr=0.5")
    assert mean < slow - 0.05
    unobserved = train(load.load([*SMALL, "method.optimizer.lr=0.5", f"run_dir={tmp_path}/unobserved"]))
    assert unobserved["val_loss"] == slow
