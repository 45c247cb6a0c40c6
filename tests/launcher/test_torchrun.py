"""`exchange=distributed`: processes that torchrun starts, each one worker of one run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch import distributed as dist

from outerloop.config import load
from outerloop.launcher.torchrun import rank
from outerloop.launcher.train import train
from outerloop.state import checkpoint
from outerloop.types import UserError
from tests.support.run_output import summary_of

SMALL = ["model=nano", "eval.sequences=16", "inner.seq_len=32", "inner.batch=4", "threads=1"]
OWN_STEPS = {"ddp", "demo", "sparta"}
ROOT = Path(__file__).parents[2]


def torchrun(size, *overrides, restarts=0):
    """The launcher, started."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    sizes = [f"--nproc-per-node={size}", f"--max-restarts={restarts}"]
    return subprocess.Popen(
        [*launcher, *sizes, "-m", "outerloop", "train", *SMALL, *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


def workers_of(launcher):
    """Rank -> process id."""
    pids = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    environments = {int(pid): Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in pids}
    return {int(line[5:]): pid for pid, lines in environments.items() for line in lines if line.startswith("RANK=")}


@pytest.fixture
def store():
    """Where ranks meet, here before and after them as a launcher's is: its port is nobody else's."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def as_ranks(store, *overrides):
    """The processes of a run that were started by hand, as another launcher would."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    where |= {"PYTHONPATH": str(ROOT)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "outerloop", "train", *SMALL, "exchange=distributed", *own],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | where | {"RANK": str(rank), "WORLD_SIZE": str(len(overrides)), "OMP_NUM_THREADS": "1"},
        )
        for rank, own in enumerate(overrides)
    ]


SETTINGS = ["recipe=sparseloco", "rounds=8", "schedule.sync_every=4", "checkpoint.every=1", "eval.every=4"]


def check_as_threads(tmp_path):
    """The run in tmp_path/ranks came to what the same run of threads comes to, bit for bit."""
    train(load.load([*SMALL, *SETTINGS, "workers=2", "exchange=inprocess", f"run_dir={tmp_path}/threads"]))
    threads, ranks = summary_of(tmp_path / "threads"), summary_of(tmp_path / "ranks")
    for key in ("slow_hash", "val_loss", "val_loss_initial", "tokens", "rounds", "rounds_failed", "workers"):
        assert ranks[key] == threads[key], key
    assert (tmp_path / "ranks/loss.png").exists() and (tmp_path / "ranks/hf/model.safetensors").exists()
    rows = [json.loads(line) for line in (tmp_path / "ranks/metrics.jsonl").read_text().splitlines()]
    for worker in range(2):
        rounds = [row["round"] for row in rows if row["event"] == "round" and row["worker"] == worker]
        assert rounds == list(range(1, 9))


@pytest.mark.slow
def test_a_run_ends_as_that_of_threads(tmp_path, store):
    processes = as_ranks(store, *[[*SETTINGS, f"run_dir={tmp_path}/ranks"]] * 2)
    told = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    check_as_threads(tmp_path)


@pytest.mark.slow
def test_lost_and_restarted_a_run_ends_as_that_of_threads(tmp_path):
    """Rank 1 is killed after the first checkpoint; torchrun starts both again, and they go on from there."""
    launcher = torchrun(2, *SETTINGS, "exchange=distributed", f"run_dir={tmp_path}/ranks", restarts=1)
    while checkpoint.newest_valid(tmp_path / "ranks", 2)[0] is None:
        assert launcher.poll() is None, launcher.communicate()[0]
        time.sleep(0.01)
    os.kill(workers_of(launcher)[1], signal.SIGKILL)
    said = launcher.communicate()[0]
    assert launcher.returncode == 0 and "resuming after inner step" in said, said
    check_as_threads(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_interrupted_all_ranks_save_after_the_same_step(number, tmp_path):
    """torchrun gets the signal and passes it on. Without it, no checkpoint would be saved before the end."""
    options = ["recipe=sparseloco", "rounds=100000", "schedule.sync_every=4", "checkpoint.every=0", "eval.every=0"]
    launcher = torchrun(2, *options, "exchange=distributed", f"run_dir={tmp_path}/ranks")
    while not has_round(tmp_path / "ranks/metrics.jsonl"):
        assert launcher.poll() is None, launcher.communicate()[0]
        time.sleep(0.1)
    launcher.send_signal(number)
    said = launcher.communicate()[0]
    assert launcher.returncode and "saving after this inner step" in said, said
    step, _ = checkpoint.newest_valid(tmp_path / "ranks", 2)
    assert step and f"resumes from the last checkpoint, after inner step {step}" in said


def has_round(file):
    """Whether a round has landed."""
    lines = file.read_text().splitlines()[:-1] if file.exists() else []
    return any(json.loads(line)["event"] == "round" for line in lines)


@pytest.mark.slow
def test_processes_with_other_settings_are_told_by_rank_0_before_anything_is_written(tmp_path, store):
    where = f"run_dir={tmp_path}/run"
    first, second = as_ranks(store, ["recipe=sparseloco", where], ["recipe=sparseloco", "schedule.sync_every=9", where])
    told = first.communicate()[1]
    second.terminate()
    also_told = second.communicate()[1]
    assert first.returncode == 2 and "Traceback" not in told + also_told, told + also_told
    assert "outerloop: schedule.sync_every is 15 here and 9 at rank 1: set the same options everywhere" in told
    assert not (tmp_path / "run").exists()


def test_without_torchrun_it_says_what_to_type(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    said = "RANK is not set: run torchrun --nproc-per-node 4 -m outerloop train exchange=distributed rounds=2"
    with pytest.raises(UserError, match=said):
        rank.train(["exchange=distributed", "rounds=2"])
    with pytest.raises(UserError, match="workers=3 is not allowed, because torchrun sets the number of workers"):
        rank.train(["exchange=distributed", "workers=3"])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", load.groups()["recipe"])
def test_every_recipe_trains(recipe, tmp_path):
    """Two processes; three for gossip, so that one of them is alone in each round."""
    steps = [] if recipe in OWN_STEPS else ["schedule.sync_every=4"]
    size, exchange = (3, "distributed_gossip") if recipe == "noloco" else (2, "distributed")
    options = [f"recipe={recipe}", f"exchange={exchange}", "rounds=20", "inner.warmup_steps=5", *steps]
    launcher = torchrun(size, *options, f"run_dir={tmp_path}/run")
    said = launcher.communicate()[0]
    assert launcher.returncode == 0, said
    summary = summary_of(tmp_path / "run")
    assert summary["val_loss"] < summary["val_loss_initial"] - 0.5
    assert summary["workers"] == size and summary["rounds_failed"] == 0 and len(set(summary["slow_hash"])) == 1
