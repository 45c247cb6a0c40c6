"""Run a command with a memory limit that it sees as a program in a container does: in a cgroup of version 1.

Needs root privileges and the memory controller of cgroup version 1. `ip netns exec` hides the cgroups of the machine,
so the command enters its cgroup before that, and mounts the cgroups again after it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROLLER = Path("/sys/fs/cgroup/memory")
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
MOUNT = (
    "mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory"
    ' && mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory && exec "$@"'
)
INSIDE = ("unshare", "--cgroup", "--mount", "sh", "-c", MOUNT, "sh")
"""Command that mounts the cgroup of its process as the root of /sys/fs/cgroup, and then runs a command."""
REMOVE_S = 10.0


@contextmanager
def memory_limit(limit_bytes: int) -> Iterator[list[str]]:
    """Create a cgroup with this limit. Yield the command that enters it and then runs a command. Remove the cgroup."""
    group = CONTROLLER / f"outerloop-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield ["sh", "-c", ENTER, str(group)]
    finally:
        remove(group)


def remove(group: Path) -> None:
    """Remove a cgroup once its last process has ended. Raises OSError if that takes longer than REMOVE_S."""
    until_s = time.monotonic() + REMOVE_S
    while time.monotonic() < until_s:
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
    group.rmdir()
