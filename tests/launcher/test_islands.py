"""`island=replicated|sharded|gathered` on the command line: an island of two ranks is a worker of its own process."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing as processes
from safetensors.torch import load_file
from torch import distributed as dist

from outerloop.config import island_checks, load, part_checks, rank_layout
from outerloop.inner import gathered_follower, worker_checkpoint
from outerloop.launcher import run_worker
from outerloop.launcher.torchrun import rank as torchrun_rank
from outerloop.launcher.train import train
from outerloop.state import checkpoint
from outerloop.swarm.timeouts import STATE_S
from outerloop.types import UserError
from tests.support import process_group, sharded_islands
from tests.support.run_output import address_in, summary_of
from tests.support.tensors import same_tensors

ROOT = Path(__file__).parents[2]
SMALL = [
    "model=module",
    "model._target_=tests.support.sharded_islands.Net",
    "+model.vocab=256",
    "+model.width=16",
    "inner.seq_len=16",
]
SMALL += ["data=text", f"data.files=[{ROOT}/LICENSE]"]
SMALL += ["inner.batch=4", "eval.sequences=8", "threads=1", "inner.warmup_steps=2", "inner.device=cpu"]
LENGTH = ["rounds=4", "schedule.sync_every=3", "checkpoint.every=2", "eval.every=2"]
TWO_OF_TWO = ["exchange=distributed", "island.ranks=2"]
RUNS = {
    "sharded": ["recipe=diloco", "island=sharded", "inner.micro_batch=1"],
    "replicated": ["recipe=sparseloco", "assignment=by_round", "island=replicated", "inner.micro_batch=1"],
    "gathered": ["recipe=sparseloco", "assignment=by_round", "island=gathered"],
}
"""Name -> recipe and island. Lanes chunk their own shards, so only a recipe without chunks does there what a whole
replica does; test_fully_shard.py has the others. The batch of an island has 4 sequences, so a rank with micro-batches
of one sequence takes two passes."""

LATER = ["replicated", "gathered"]
LIMIT_S = 100
"""Of what processes of a torchrun of their own do until somebody else can go on."""


def process(place, size, runs):
    """One process of torchrun, as it were, through several runs: (port, options) each."""
    for port, options in runs:
        os.environ |= {"RANK": str(place), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        assert torchrun_rank.train([*SMALL, *LENGTH, *options]) == 0


def torchrun(size, *runs):
    """These runs, one after another, in as many processes; they are forked from one that has imported everything.

    Each run meets in a store that is here before it and after it, as torchrun's is, so that its port is nobody else's.
    """
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in runs]
    places = [(store.port, options) for store, options in zip(stores, runs, strict=True)]
    process_group.preload()
    processes.start_processes(process, (size, places), nprocs=size, start_method="forkserver")


def model_of(run_dir):
    return load_file(run_dir / "hf/model.safetensors")


def rows_of(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def before_its_end(run_dir, folder):
    """A copy of a run that stopped after its first checkpoint."""
    shutil.copytree(run_dir, folder)
    for name in ("summary.json", ".model"):
        (folder / name).unlink()
    shutil.rmtree(folder / "hf")
    shutil.rmtree(folder / "checkpoints/step-00000012")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """All kinds, two islands of two ranks; and the same by two threads."""
    folder = tmp_path_factory.mktemp("islands")
    torchrun(4, *([*options, *TWO_OF_TWO, f"run_dir={folder}/{name}"] for name, options in RUNS.items()))
    for run_dir, options in {whole(folder, name): options[:-1] for name, options in RUNS.items()}.items():
        train(load.load([*SMALL, *LENGTH, *options, "workers=2", "exchange=inprocess", f"run_dir={run_dir}"]))
    return folder


def whole(folder, name):
    """The run by threads that a run of islands does the same as."""
    return folder / RUNS[name][0].removeprefix("recipe=")


@pytest.mark.parametrize("name", RUNS)
def test_two_islands_of_two_ranks_are_two_workers(ran, name):
    alone, start = model_of(whole(ran, name)), sharded_islands.Net(vocab=256, width=16).state_dict()
    there = model_of(ran / name)
    assert there.keys() == alone.keys() and not torch.equal(there["blocks.0.up.weight"], start["blocks.0.up.weight"])
    torch.testing.assert_close(there, alone, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_an_island_is_accounted_for_as_one_worker(ran, name):
    ours, alone = summary_of(ran / name), summary_of(whole(ran, name))
    for key in ("workers", "rounds", "rounds_failed", "tokens", "params"):
        assert ours[key] == alone[key], key
    for key in ("val_loss", "val_loss_initial"):
        assert ours[key] == pytest.approx(alone[key], rel=1e-4), key
    messages = 2 if name == "sharded" else 1  # each with a header of its own
    assert ours["payload_bytes_per_worker"] == pytest.approx(alone["payload_bytes_per_worker"], abs=4000 * messages)


@pytest.mark.parametrize("name", RUNS)
def test_every_rank_tells_its_memory_before_the_first_step(ran, name):
    """By the order of the rows, where it is that of sending: all of island 1 go the same way to rank 0, its own do not.

    Both of its ranks have told before the first evaluation, which both take part in and which the first step follows.
    """
    rows = list(enumerate(rows_of(ran / name)))
    told = {row["text"].split(":")[0]: at for at, row in rows if "memory of this rank" in row.get("text", "")}
    assert set(told) == {f"island {island} rank {place}" for island in (0, 1) for place in (0, 1)}
    first = next(at for at, row in rows if row["event"] == "eval" and row["worker"] == 1)
    assert rows[first][1]["step"] == 0 and max(told["island 1 rank 0"], told["island 1 rank 1"]) < first


@pytest.mark.parametrize("name", ["sharded", *(pytest.param(name, marks=pytest.mark.slow) for name in LATER)])
def test_a_run_goes_on_with_islands_of_one_rank(ran, name, tmp_path):
    """From the checkpoint of two ranks an island, in half as many processes."""
    before_its_end(ran / name, tmp_path / "run")
    torchrun(2, [*RUNS[name], "exchange=distributed", "island.ranks=1", f"run_dir={tmp_path}/run"])
    torch.testing.assert_close(model_of(tmp_path / "run"), model_of(ran / name), rtol=1e-3, atol=1e-5)
    assert summary_of(tmp_path / "run")["tokens"] == summary_of(ran / name)["tokens"]


@pytest.mark.parametrize("name", ["sharded", "gathered"])
def test_a_run_does_not_go_on_from_a_shard_that_is_cut_short(ran, name, tmp_path):
    shutil.copytree(ran / name / "checkpoints", tmp_path / "checkpoints")
    assert checkpoint.newest_valid(tmp_path, 2) == (12, [])
    shard = max((tmp_path / "checkpoints/step-00000012/island-1").glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert checkpoint.newest_valid(tmp_path, 2) == (6, [f"{shard} is damaged"])


@pytest.mark.slow
def test_a_gathered_island_goes_on_with_its_ranks(ran, tmp_path):
    before_its_end(ran / "gathered", tmp_path / "run")
    torchrun(4, [*RUNS["gathered"], *TWO_OF_TWO, f"run_dir={tmp_path}/run"])
    torch.testing.assert_close(model_of(tmp_path / "run"), model_of(ran / "gathered"), rtol=1e-3, atol=1e-5)
    assert summary_of(tmp_path / "run")["tokens"] == summary_of(ran / "gathered")["tokens"]


def test_a_rank_that_follows_takes_its_shards_from_disk_and_the_position_from_its_leader(tmp_path, monkeypatch):
    """No worker-0.pt is there to be read."""
    position, read, taken = {"stream": {"epoch": 1, "cursor": 5}, "tokens": 7, "updates": 3}, [], []
    orders = [{"do": "load", "step": 6, "position": position}, {"do": "leave"}]
    shards = SimpleNamespace(load_inner=lambda folder, optimizer, model: read.append(folder))
    monkeypatch.setattr(worker_checkpoint, "distributed_checkpoint", lambda: shards)
    outer = SimpleNamespace(island=None, recv_command=lambda: orders.pop(0))
    trainer = SimpleNamespace(outer=outer, optimizer=None, model=None, resume_from=taken.append)
    gathered_follower.follow(outer, trainer, torch.empty(0), SimpleNamespace(run_dir=tmp_path, index=0))
    assert read == [tmp_path / "checkpoints/step-00000006/island-0"] and taken == [position]


ALL_OF_TWO = [*LENGTH, "exchange.peers=2", "exchange.quorum=all", "exchange.grace_s=60", "clip=none"]  # as threads
"""Every round counts both islands."""
MOST_OF_THREE = ["exchange.peers=3", "rounds=150", "schedule.sync_every=10", "checkpoint.every=75", "eval.every=75"]
"""Rounds go on without the third island, and long enough for it to come back."""


@contextmanager
def launched(run_dir, *options):
    """Torchrun with one island of two ranks of a swarm; it ends with this."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    with (run_dir.parent / f"{run_dir.name}.txt").open("a") as told:
        process = subprocess.Popen(
            [*launcher, "-m", "outerloop", "train", *SMALL, "exchange=swarm_gather", *options, f"run_dir={run_dir}"],
            stdout=told,
            stderr=told,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
    try:
        yield process
    finally:
        process.terminate()  # it ends its own
        process.wait(LIMIT_S)


def invitation(first, told):
    """What the other island types, once the first one has told."""
    ends_s = time.monotonic() + LIMIT_S
    while not (address := address_in(told.read_text())):
        assert first.poll() is None and time.monotonic() < ends_s, told.read_text()
        time.sleep(0.1)
    return address


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("gathered", "replicated"), ("sharded", "sharded")])
def test_islands_meet_in_a_swarm(ran, kinds, tmp_path):
    """Each is a torchrun of its own; they come to one model, that of two threads."""
    told = tmp_path / "one.txt"
    with launched(tmp_path / "one", "recipe=diloco", f"island={kinds[0]}", *ALL_OF_TWO) as first:
        address = invitation(first, told)
        with launched(tmp_path / "other", "recipe=diloco", f"island={kinds[1]}", *ALL_OF_TWO, address) as second:
            codes = [process.wait(LIMIT_S) for process in (first, second)]
    assert codes == [0, 0], told.read_text() + (tmp_path / "other.txt").read_text()
    one, other = (model_of(tmp_path / name) for name in ("one", "other"))
    assert same_tensors(one, other)
    torch.testing.assert_close(one, model_of(ran / "diloco"), rtol=1e-3, atol=1e-5)


def unfinished(run_dir, *, after):
    """Change a finished run into one that stopped at its checkpoint after this inner step."""
    for name in ("summary.json", ".model"):
        (run_dir / name).unlink()
    shutil.rmtree(run_dir / "hf")
    for step in checkpoint.sealed(run_dir):
        if step > after:
            shutil.rmtree(checkpoint.generation(run_dir, step))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_islands_of_a_swarm_that_stopped_at_different_steps_resume_together(tmp_path):
    """The one that had stopped later goes back to the checkpoint that both have."""
    options = ["recipe=diloco", *ALL_OF_TWO]

    def trained():
        with launched(tmp_path / "one", "island=gathered", *options) as first:
            address = invitation(first, tmp_path / "one.txt")
            with launched(tmp_path / "other", "island=replicated", *options, address) as second:
                codes = [process.wait(LIMIT_S) for process in (first, second)]
        text = [(tmp_path / f"{name}.txt").read_text() for name in ("one", "other")]
        assert codes == [0, 0], "".join(text)
        for name in ("one", "other"):
            (tmp_path / f"{name}.txt").rename(tmp_path / f"{name}-before.txt")
        return [model_of(tmp_path / name) for name in ("one", "other")], text

    [before, _], _ = trained()
    unfinished(tmp_path / "one", after=6)
    unfinished(tmp_path / "other", after=12)
    (one, other), text = trained()
    assert same_tensors(one, other)
    assert "resuming after inner step 12" in text[1] and "going back to inner step 6" in text[1]
    torch.testing.assert_close(one, before, rtol=1e-3, atol=1e-5)


def rounds_in(run_dir):
    """How many rounds an island has told of."""
    return sum(row["event"] == "round" for row in rows_of(run_dir)) if (run_dir / "metrics.jsonl").exists() else 0


def until(there, processes):
    """Wait for something, while these processes live."""
    ends_s = time.monotonic() + LIMIT_S
    while not there():
        assert time.monotonic() < ends_s and all(process.poll() is None for process in processes)
        time.sleep(0.1)


def ranks_of(launcher):
    """The processes that torchrun has started."""
    told = subprocess.run(["ps", "-o", "pid=", "--ppid", str(launcher.pid)], capture_output=True, text=True, check=True)
    return [int(pid) for pid in told.stdout.split()]


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_a_sharded_island_that_was_killed_takes_over_the_state_of_the_others(tmp_path):
    """All lanes of it, from other sharded islands; in the end all have one model."""
    options = ["recipe=sparseloco", "island=sharded", *MOST_OF_THREE]
    runs = [tmp_path / name for name in ("one", "two", "three")]
    with ExitStack() as stack:
        first = stack.enter_context(launched(runs[0], *options))
        address = invitation(first, tmp_path / "one.txt")
        second = stack.enter_context(launched(runs[1], *options, address))
        with launched(runs[2], *options, address) as third:
            until(lambda: rounds_in(runs[2]) > 3, [first, second, third])
            for rank_of_third in ranks_of(third):
                os.kill(rank_of_third, signal.SIGKILL)
            assert third.wait(LIMIT_S) != 0
        gone = rounds_in(runs[0])
        until(lambda: rounds_in(runs[0]) > gone + 12, [first, second])
        third = stack.enter_context(launched(runs[2], *options, address))
        assert [process.wait(2 * LIMIT_S) for process in (first, second, third)] == [0, 0, 0]
    assert "downloading the state of the run" in (tmp_path / "three.txt").read_text()
    one, *others = (model_of(run) for run in runs)
    assert all(torch.equal(x, other[name]) for name, x in one.items() for other in others)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["island=sharded", "island.ranks=3"], "island.ranks=3 must divide the 4 processes .* set island.ranks=4"),
        (["island=sharded", "island.ranks=0"], "island.ranks=0 must divide"),
        (["island.ranks=2"], "island.ranks=2 does not apply to island=single, which has one rank: set island=sharded"),
        (["island=sharded", "exchange=swarm_gather", "island.ranks=2"], "set island.ranks=4, or exchange=distributed"),
        (
            ["island=gathered", "exchange=swarm_gather", "island.ranks=2"],
            "set island.ranks=4, or exchange=distributed",
        ),
        (["island=sharded", "exchange=inprocess"], "set exchange=distributed"),
        (["island=sharded", "recipe=muloco"], "Muon needs whole matrices, .*: set island=replicated"),
        (["island=sharded", "inner.compile=true"], "set inner.compile=false"),
        (["island=sharded", "inner.micro_batch=auto"], "set a number, or inner.micro_batch=null"),
        (["inner.micro_batch=auto"], "set a number, or inner.micro_batch=null"),
        (["island=gathered", "buffers=averaged"], "set buffers=local"),
        (["island=replicated", "schedule=every_seconds"], "set schedule=every_h"),
        (
            ["island=sharded", "schedule=adaptive"],
            "schedule=adaptive requires island=single: set schedule=every_h",
        ),
        (["island=gathered", "compress=auto"], "compress=auto requires island=single: set compress=topk"),
        (["island=sharded", "schedule.early=true", "schedule.delay=2"], "set schedule.early=false"),
        (["island=sharded", "inner.batch=6"], "cannot be split evenly over the 4 ranks of .*: set inner.batch=8"),
        (["island=sharded", "keep_payload_rounds=2"], "set keep_payload_rounds=0"),
        (
            ["island=sharded", "eager=true", "schedule.delay=15"],
            "set eager=false schedule.delay=0, or island=gathered",
        ),
    ],
)
def test_unsupported_settings_of_islands_are_refused_in_one_line(options, said):
    settings = ["exchange=distributed", *options]
    with pytest.raises(UserError, match=said) as mistake:
        torchrun_rank.load_settings(settings, processes=4)
    assert "\n" not in str(mistake.value)


def test_islands_are_the_workers_of_a_run():
    settings = torchrun_rank.load_settings(["exchange=distributed", "island=sharded", "island.ranks=2"], processes=4)
    assert settings.workers == 2 and island_checks.ranks_per_island(settings, 4) == 2
    assert torchrun_rank.load_settings(["exchange=swarm_gather", "island=gathered"], processes=4).workers == 1


def test_a_rank_evaluates_as_much_at_a_time_as_it_trains_on(tmp_path):
    settings = load.load(["inner.batch=8"])
    batches = [run_worker.worker_settings(settings, 0, tmp_path, ranks=ranks).eval_batch for ranks in (1, 4, 16)]
    assert batches == [8, 2, 1]
    small = load.load(["inner.batch=8", "inner.micro_batch=3"])
    batches = [run_worker.worker_settings(small, 0, tmp_path, ranks=ranks).eval_batch for ranks in (1, 4, 16)]
    assert batches == [3, 2, 1]


def test_a_rank_without_a_validation_window_is_answered_before_anything_starts(tmp_path, monkeypatch):
    """10,400 characters give 4 windows of 128 for validation: enough for 4 processes, not for the ranks of 6."""
    (tmp_path / "text.txt").write_text("hello world, " * 800)
    options = ["data=text", f"data.files=[{tmp_path}/text.txt]", "model=nano", "inner.seq_len=128", "eval.sequences=8"]
    settings = load.load([*options, "workers=2"])
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    part_checks.check_parts(settings)
    monkeypatch.setattr(dist, "get_world_size", lambda: 6)
    said = "has 4 windows of inner.seq_len=128, but each of 6 processes needs one: set inner.seq_len=85"
    with pytest.raises(UserError, match=said) as mistake:
        part_checks.check_parts(settings)
    assert "\n" not in str(mistake.value)
    part_checks.check_parts(load.load([*options, "workers=2", "inner.seq_len=85"]))
    with pytest.raises(UserError, match=r"each of 6 processes needs one: set eval\.sequences=6"):
        part_checks.check_parts(load.load([*options, "workers=2", "inner.seq_len=85", "eval.sequences=5"]))


def test_ranks_that_would_share_a_gpu_are_told_what_to_type(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    said = "4 ranks .* 2 CUDA devices, .*: pass --nproc-per-node 2, or inner.device=cpu"
    with pytest.raises(UserError, match=said) as mistake:
        rank_layout.current_layout(
            torchrun_rank.load_settings(["exchange=distributed", "island=sharded", "inner.device=cuda"], processes=4)
        )
    assert "\n" not in str(mistake.value)


def patience_s(place, *, options):
    """Of a process in the group of its island's ranks and in its lane; its seat."""
    taken = rank_layout.current_layout(torchrun_rank.load_settings(["inner.device=cpu", *options], processes=4))
    groups = [taken.ranks.group, taken.lane_group]
    limits = [group._get_backend(torch.device("cpu")).options._timeout for group in groups]  # noqa: SLF001
    dist.barrier()  # a rank that leaves closes connections of groups that others are still building
    return [[limit.total_seconds() for limit in limits], taken.island, taken.ranks.rank]


def test_the_ranks_of_an_island_wait_longer_than_its_first_one_for_a_round(tmp_path):
    options = [*TWO_OF_TWO, "island=sharded", "round_timeout_s=3600"]
    told = process_group.together(4, functools.partial(patience_s, options=options), tmp_path)
    assert told == [[[7200.0, 7200.0], *divmod(place, 2)] for place in range(4)]


def test_the_ranks_of_an_island_in_a_swarm_wait_for_a_download():
    ways = {"exchange=distributed": 1800, "exchange=swarm_gather": STATE_S, "exchange=swarm_gossip": STATE_S}
    for exchange, at_least in ways.items():
        settings = torchrun_rank.load_settings([exchange, "island=replicated", "round_timeout_s=60"], processes=2)
        assert rank_layout.group_timeout(settings).total_seconds() == at_least


def test_without_torchrun_an_island_says_what_to_type(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UserError, match="RANK is not set: run torchrun --nproc-per-node 4 -m outerloop train island"):
        torchrun_rank.train(["island=sharded"])
