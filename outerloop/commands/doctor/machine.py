"""Checks of this machine: versions, disk, memory, open files, GPU. Nothing is started and nobody is asked."""

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
"""Packages whose versions are worth a glance; all that are asked for are checked."""
LEAST_DISK = 2e9
"""Bytes: two checkpoints and the exported model of the default job, thirty times over."""
LEAST_MEMORY = 1e9
"""Bytes: one worker of the default job takes half of it, p2pd a tenth."""
LEAST_FILES = 1024
"""p2pd keeps up to 512 connections, and a stream is a file too."""


def findings() -> Iterator[Finding]:
    """All of them."""
    yield from versions()
    yield disk(shutil.disk_usage(".").free)
    yield memory(Path("/proc/meminfo"))
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield gpu()


def versions() -> Iterator[Finding]:
    """One line for what is as it should be, one more for each that is not."""
    try:
        asked, python = metadata.requires(OWN) or [], metadata.metadata(OWN)["Requires-Python"]
    except metadata.PackageNotFoundError:
        yield Finding("versions", None, f"{OWN} is not installed: nothing says what it needs", "type pip install -e .")
        return
    found = {"python": platform.python_version(), OWN: metadata.version(OWN)}
    wrong = list(mismatch("python", python, found["python"]))
    for requirement in map(Requirement, asked):
        there = version_of(requirement.name)
        if there is None and requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue  # an extra that is not wanted here
        wrong += mismatch(requirement.name, str(requirement.specifier), there)
        if there and requirement.name in SHOWN:
            found[requirement.name] = str(torch.__version__) if requirement.name == "torch" else there  # with its build
    yield from wrong
    if not wrong:
        yield Finding("versions", True, ", ".join(f"{name} {version}" for name, version in found.items()))


def version_of(package: str) -> str | None:
    """Of what is installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def mismatch(package: str, asked: str, there: str | None) -> Iterator[Finding]:
    """Nothing when the version fits; one of a nightly build counts."""
    if there is None or not SpecifierSet(asked).contains(there, prereleases=True):
        todo = "install that Python" if package == "python" else f"type pip install '{package}{asked}'"
        yield Finding("versions", False, f"{package} {there or 'is missing'}, asked for is {asked}", todo)


def disk(free: float) -> Finding:
    """Room where runs go by default."""
    said, enough = f"{readable_bytes(free)} free in this folder", free >= LEAST_DISK
    todo = "" if enough else f"free {readable_bytes(LEAST_DISK)}, or type run_dir= on another disk"
    return Finding("disk", enough, said, todo)


def memory(file: Path) -> Finding:
    """What the kernel would give to a new process."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", file.read_text()) if file.exists() else None
    if found is None:
        return Finding("memory", None, "this system does not tell")
    free = 1024 * int(found[1])
    todo = "" if free >= LEAST_MEMORY else "end other programs, or type workers=1 model=nano"
    return Finding("memory", free >= LEAST_MEMORY, f"{readable_bytes(free)} free", todo)


def open_files(limit: int) -> Finding:
    """The soft limit, which a program may not pass."""
    if limit == resource.RLIM_INFINITY:
        return Finding("files", True, "no limit on open files")
    todo = "" if limit >= LEAST_FILES else f"type ulimit -n {4 * LEAST_FILES}"
    return Finding("files", limit >= LEAST_FILES, f"{limit} may be open", todo)


def gpu() -> Finding:
    """The first one that torch can use; none is no fault."""
    if not torch.cuda.is_available():
        return Finding("gpu", None, "torch sees none: training runs on the CPU")
    free, total = torch.cuda.mem_get_info()
    said = f"{torch.cuda.get_device_name()}, {readable_bytes(free)} of {readable_bytes(total)} free"
    return Finding("gpu", True, said)
