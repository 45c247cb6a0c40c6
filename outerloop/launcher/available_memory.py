"""Read how much memory a new program may use: what the kernel reports as available, limited by cgroups."""

from __future__ import annotations

import re
from pathlib import Path

from outerloop.launcher.cpu_share import CGROUP, MEMBERSHIPS, cgroup_folders

MEMINFO = Path("/proc/meminfo")
CGROUP_FILES = {
    "memory.max": ("memory.current", "inactive_file"),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
}
"""File with the memory limit -> file with the used memory, and a field of memory.stat, all in bytes.

The field contains the part of the used memory that the kernel frees when memory is short. The first row is for cgroup
v2, the second one for v1.
"""


def available_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, memberships: Path = MEMBERSHIPS) -> int | None:
    """Return how many bytes of memory a new program may use, or None if this system does not report the number."""
    match = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text()) if meminfo.exists() else None
    if match is None:
        return None
    limits = map(cgroup_bytes, cgroup_folders("memory", cgroup, memberships))
    return min([1024 * int(match[1]), *(limit for limit in limits if limit is not None)])


def cgroup_bytes(folder: Path) -> int | None:
    """Return the number of bytes that the cgroup in `folder` still allows, or None if it sets no limit."""
    for limit, (usage, reclaimable) in CGROUP_FILES.items():
        try:
            limit_bytes, used_bytes = int((folder / limit).read_text()), int((folder / usage).read_text())
            stat = (folder / limit).with_name("memory.stat").read_text()
        except (OSError, ValueError):  # not this version of cgroup, or "max"
            continue
        cache = re.search(rf"^{reclaimable} (\d+)$", stat, re.MULTILINE)
        return max(0, limit_bytes - used_bytes + (int(cache[1]) if cache else 0))
    return None
