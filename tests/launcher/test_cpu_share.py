"""How many threads a worker computes with, and that they sleep while they wait."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from outerloop.launcher import cpu_share
from outerloop.launcher.thread_pool import ThreadWorkerPool


@pytest.fixture
def eight_cores(monkeypatch, tmp_path):
    """A machine of eight cores without a cgroup's quota."""
    monkeypatch.setattr(cpu_share.os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(cpu_share.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(cpu_share, "CGROUP", tmp_path)
    monkeypatch.setattr(cpu_share, "MEMBERSHIPS", tmp_path / "self")
    return tmp_path


def sweep_of(monkeypatch, **launcher):
    """As inside a job of a hydra sweep with this launcher."""
    monkeypatch.setattr(cpu_share.HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(cpu_share.HydraConfig, "get", lambda: SimpleNamespace(launcher=launcher))


def test_cores_are_shared_out_among_the_processes_of_a_run(eight_cores):
    assert [cpu_share.core_share(n) for n in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]


@pytest.mark.parametrize(("n_jobs", "share"), [(1, 8), (2, 4), (4, 2), (16, 1), (-1, 1), (-5, 2)])
def test_cores_are_shared_out_among_the_jobs_of_a_sweep(eight_cores, monkeypatch, n_jobs, share):
    sweep_of(monkeypatch, n_jobs=n_jobs)
    assert cpu_share.core_share(1) == share


def test_a_launcher_without_jobs_trains_one_run_at_a_time(eight_cores, monkeypatch):
    sweep_of(monkeypatch)
    assert cpu_share.core_share(1) == 8


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "1600000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu.max": "nonsense"}, 8),
    ],
)
def test_a_containers_quota_counts(eight_cores, files, usable):
    for name, text in files.items():
        (eight_cores / name).parent.mkdir(exist_ok=True)
        (eight_cores / name).write_text(text + "\n")
    assert cpu_share.available_cores() == usable


@pytest.mark.parametrize(
    ("memberships", "files", "usable"),
    [
        ("0::/job/step", {"job/cpu.max": "300000 100000", "job/step/cpu.max": "max 100000"}, 3),
        ("0::/job/step", {"job/cpu.max": "300000 100000", "job/step/cpu.max": "200000 100000"}, 2),
        ("0::/job", {"other/cpu.max": "200000 100000"}, 8),
        ("4:cpu,cpuacct:/job", {"cpu/job/cpu.cfs_quota_us": "500000", "cpu/job/cpu.cfs_period_us": "100000"}, 5),
        ("4:cpuset:/job", {"cpu/job/cpu.cfs_quota_us": "500000", "cpu/job/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_the_lowest_quota_on_the_path_of_the_own_cgroup_counts(eight_cores, memberships, files, usable):
    (eight_cores / "self").write_text(memberships)
    for name, text in files.items():
        (eight_cores / name).parent.mkdir(parents=True, exist_ok=True)
        (eight_cores / name).write_text(text + "\n")
    assert cpu_share.available_cores() == usable


@pytest.mark.parametrize(
    ("params", "tokens", "threads"),
    [(467_808, 8 * 128, 1), (885_888, 8 * 128, 2), (100_000_000, 8 * 1024, 2048), (10, 1, 1)],
)
def test_small_models_get_one_thread(params, tokens, threads):
    assert cpu_share.useful_threads(params, tokens) == threads


def test_fit_only_lowers():
    torch.set_num_threads(3)
    cpu_share.limit_threads(100_000_000, 8192)
    assert torch.get_num_threads() == 3
    cpu_share.limit_threads(885_888, 1024)
    assert torch.get_num_threads() == 2
    cpu_share.limit_threads(467_808, 1024)
    assert torch.get_num_threads() == 1


def test_workers_as_threads_share_with_the_other_jobs(eight_cores, monkeypatch, tmp_path):
    torch.set_num_threads(6)
    sweep_of(monkeypatch, n_jobs=2)
    for asked, got in [(None, 4), (7, 7)]:
        team = ThreadWorkerPool(SimpleNamespace(workers=2, threads=asked), tmp_path, None)
        assert team.compute(torch.get_num_threads) == got
        team.compute.close()


@pytest.mark.parametrize(("asked", "policy"), [(None, "passive"), ("active", "active")])
def test_the_command_line_says_how_threads_wait_before_torch_is_loaded(asked, policy):
    program = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and "torch" not in sys.modules:
            print(os.environ.get("OMP_WAIT_POLICY"))
sys.meta_path.insert(0, Watch())
import outerloop.commands.main
import torch
"""
    env = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    env |= {"OMP_WAIT_POLICY": asked} if asked else {}
    ran = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [policy]
