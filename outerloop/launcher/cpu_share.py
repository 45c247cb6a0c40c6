"""Choose the number of CPU threads of a worker: its share of the available cores, limited to what its model can use.

    share    cores that affinity and the cgroup quota allow / (concurrent runs of a sweep x processes of a run)
    threads  min(share, OMP_NUM_THREADS, parameters x tokens of one pass / GRAIN), at least 1

With a second thread, the steps of a model with half a million parameters are 1.2 times as fast. But if another program
uses the second core, they are slower than with one thread, because all threads wait for the slowest one at the end of
every operation. Small models therefore use one thread.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig

from outerloop.kernels.threads import set_threads

GRAIN = 4e8
"""Work per thread, measured as parameters x tokens of a forward and backward pass.

With the default settings, model=nano gets 1 thread and model=tiny 2.
"""
CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIPS = Path("/proc/self/cgroup")
"""File with the cgroups of this process, one per line, as number:controllers:path. With v2, `controllers` is empty."""


def core_share(processes: int) -> int:
    """Return the number of threads that each process of a run may use, at least 1.

    `processes`: number of processes of the run on this machine.
    """
    return max(1, available_cores() // (concurrent_runs() * processes))


def threads_per_process(processes: int) -> int:
    """Return the number of threads from `core_share`, or torch's current number (OMP_NUM_THREADS) if that is lower."""
    return min(torch.get_num_threads(), core_share(processes))


def useful_threads(params: int, tokens: int) -> int:
    """Return the number of threads that a model can use, at least 1. `tokens`: tokens of one forward pass."""
    return max(1, int(params * tokens / GRAIN))


def available_cores() -> int:
    """Return the number of cores that CPU affinity and the cgroup quota allow this process to use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = map(cgroup_quota, cgroup_folders("cpu", CGROUP, MEMBERSHIPS))
    return min([allowed, *(quota for quota in quotas if quota is not None)])


def cgroup_folders(controller: str, root: Path, memberships: Path) -> list[Path]:
    """Return the folders of the cgroups that limit this process: its own one and all above it, for cgroup v2 and v1.

    Some of them may not exist, because a container may see only a part of the tree. `root`: where the tree is mounted.
    `memberships`: the file MEMBERSHIPS.
    """
    try:
        lines = [line.split(":", 2) for line in memberships.read_text().splitlines()]
    except OSError:  # not Linux
        lines = []
    paths = {name: Path(path.lstrip("/")) for _, names, path in lines for name in names.split(",")}
    mounts = {root: paths.get("", Path()), root / controller: paths.get(controller, Path())}
    return [mount / part for mount, path in mounts.items() for part in (path, *path.parents)]


def cgroup_quota(folder: Path) -> int | None:
    """Return the number of cores that the cgroup in `folder` allows, or None if it sets no limit.

    The number is quota / period, rounded up. Supports cgroup v1 and v2.
    """
    try:
        if (folder / "cpu.max").exists():
            limit, period = (folder / "cpu.max").read_text().split()
        else:
            limit = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return -(-int(limit) // int(period)) if int(limit) > 0 else None
    except (OSError, ValueError):  # no cgroup, or "max"
        return None


def concurrent_runs() -> int:
    """Return how many runs of a sweep hydra's launcher trains at the same time (its n_jobs), or 1 outside a sweep."""
    n_jobs = HydraConfig.get().launcher.get("n_jobs", 1) if HydraConfig.initialized() else 1
    cores = os.cpu_count() or 1
    return n_jobs if n_jobs > 0 else max(1, cores + 1 + n_jobs)  # joblib: -1 is all cores, -2 all but one


def limit_threads(params: int, tokens: int) -> None:
    """Lower the calling thread's number of torch threads to the number that its model can use."""
    set_threads(min(torch.get_num_threads(), useful_threads(params, tokens)))
