"""Checks of this machine: versions, disk, memory, open files, GPU. They start no process and contact no peer."""

from __future__ import annotations

import platform
import re
import resource
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from outerloop.commands.doctor.finding import Finding
from outerloop.sinks.console import readable_bytes

OWN = "outerloop-train"
SHOWN = ("torch", "hivemind", "hydra-core", "numba", "triton")
"""Packages whose versions are shown. All required packages are checked."""
LEAST_DISK = 2e9
"""In bytes: thirty times the size of two checkpoints and the exported model of the default job."""
LEAST_MEMORY = 1e9
"""In bytes: one worker of the default job needs half of it, p2pd a tenth."""
LEAST_FILES = 1024
"""p2pd keeps up to 512 connections, and each stream also uses a file descriptor."""


def findings() -> Iterator[Finding]:
    """Run all checks of this machine."""
    yield from versions()
    yield disk(shutil.disk_usage(".").free)
    yield memory(Path("/proc/meminfo"))
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield gpu()


def versions() -> Iterator[Finding]:
    """Yield a failed finding for each version that does not satisfy the requirements, else one that lists versions."""
    try:
        asked, python = metadata.requires(OWN) or [], metadata.metadata(OWN)["Requires-Python"]
    except metadata.PackageNotFoundError:
        yield Finding("versions", None, f"{OWN} is not installed: its requirements are unknown", "run pip install -e .")
        return
    found = {"python": platform.python_version(), OWN: metadata.version(OWN)}
    wrong = list(mismatch("python", python, found["python"]))
    for requirement in map(Requirement, asked):
        there = version_of(requirement.name)
        if there is None and requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue  # an optional extra that is not installed
        wrong += mismatch(requirement.name, str(requirement.specifier), there)
        if there and requirement.name in SHOWN:
            found[requirement.name] = str(torch.__version__) if requirement.name == "torch" else there  # with its build
    yield from wrong
    if not wrong:
        yield Finding("versions", True, ", ".join(f"{name} {version}" for name, version in found.items()))


def version_of(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def mismatch(package: str, asked: str, there: str | None) -> Iterator[Finding]:
    """Yield a failed finding unless the version satisfies the requirement. Nightly builds count as fitting."""
    if there is None or not SpecifierSet(asked).contains(there, prereleases=True):
        todo = "install that Python" if package == "python" else f"run pip install '{package}{asked}'"
        yield Finding("versions", False, f"{package} {there or 'is missing'}, required is {asked}", todo)


def disk(free: float) -> Finding:
    """Check the free space in the current folder, in which runs are stored by default."""
    said, enough = f"{readable_bytes(free)} free in this folder", free >= LEAST_DISK
    todo = "" if enough else f"free {readable_bytes(LEAST_DISK)}, or set run_dir= to a folder on another disk"
    return Finding("disk", enough, said, todo)


def memory(file: Path) -> Finding:
    """Check the memory that the kernel reports as available to a new process."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", file.read_text()) if file.exists() else None
    if found is None:
        return Finding("memory", None, "this system does not report it")
    free = 1024 * int(found[1])
    todo = "" if free >= LEAST_MEMORY else "end other programs, or set workers=1 model=nano"
    return Finding("memory", free >= LEAST_MEMORY, f"{readable_bytes(free)} free", todo)


def open_files(limit: int) -> Finding:
    """Check the soft limit on open files, which a process cannot exceed."""
    if limit == resource.RLIM_INFINITY:
        return Finding("files", True, "no limit on open files")
    todo = "" if limit >= LEAST_FILES else f"run ulimit -n {4 * LEAST_FILES}"
    return Finding("files", limit >= LEAST_FILES, f"{limit} open files allowed", todo)


def gpu() -> Finding:
    """Report the first GPU that torch can use. Having no GPU does not fail the check."""
    if not torch.cuda.is_available():
        return Finding("gpu", None, "torch finds no GPU: training runs on the CPU")
    free, total = torch.cuda.mem_get_info()
    said = f"{torch.cuda.get_device_name()}, {readable_bytes(free)} of {readable_bytes(total)} free"
    return Finding("gpu", True, said)
