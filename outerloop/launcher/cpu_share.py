"""CPU threads of a worker: the cores this process may use, shared with whatever trains beside it, as its model needs.

    share    cores that affinity and the cgroup's quota allow / (runs of a sweep at a time x processes of a run)
    threads  min(share, OMP_NUM_THREADS, parameters x tokens of a micro-batch / GRAIN), at least 1

A second thread makes steps of a model of half a million parameters 1.2 times as fast, and slower while another program
uses that core: every operation ends with all threads waiting for the slowest. So small models compute with one thread.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig

from outerloop.kernels.threads import keep_to

GRAIN = 4e8
"""Parameters x tokens of a micro-batch that are worth one thread: model=nano gets 1 by default, model=tiny 2."""
CGROUP = Path("/sys/fs/cgroup")


def share(processes: int) -> int:
    """Return how many threads each of so many processes of one run on this machine may use, at least 1."""
    return max(1, usable() // (jobs() * processes))


def share_here(processes: int) -> int:
    """Return the same, or what OMP_NUM_THREADS gives this process if that is less."""
    return min(torch.get_num_threads(), share(processes))


def suited(params: int, tokens: int) -> int:
    """Return how many threads a model of `params` parameters gains from with micro-batches of `tokens` tokens."""
    return max(1, int(params * tokens / GRAIN))


def usable() -> int:
    """Return how many cores affinity and the cgroup's quota leave to this process."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, quota(CGROUP) or allowed)


def quota(folder: Path) -> int | None:
    """Return how many cores a container may use: quota / period of version 2 or 1, rounded up; None without a limit."""
    try:
        if (folder / "cpu.max").exists():
            limit, period = (folder / "cpu.max").read_text().split()
        else:
            limit = (folder / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu" / "cpu.cfs_period_us").read_text()
        return -(-int(limit) // int(period)) if int(limit) > 0 else None
    except (OSError, ValueError):  # no cgroup, or "max"
        return None


def jobs() -> int:
    """Return how many runs of this sweep the launcher trains at the same time (its n_jobs); 1 outside a sweep."""
    asked = HydraConfig.get().launcher.get("n_jobs", 1) if HydraConfig.initialized() else 1
    cores = os.cpu_count() or 1
    return asked if asked > 0 else max(1, cores + 1 + asked)  # joblib: -1 is all cores, -2 all but one


def fit(params: int, tokens: int) -> None:
    """Lower the number of torch threads of the calling thread to what its model gains from."""
    keep_to(min(torch.get_num_threads(), suited(params, tokens)))
