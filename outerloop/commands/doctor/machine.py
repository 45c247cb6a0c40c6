"""Check this machine: versions, disk, memory, open files, GPU. No process is started and no peer is contacted."""

from __future__ import annotations

import platform
import resource
import shutil
from collections.abc import Iterator
from importlib import metadata

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from outerloop.commands.doctor.finding import Finding
from outerloop.launcher.available_memory import available_bytes
from outerloop.sinks.console import format_bytes

PACKAGE = "outerloop-train"
SHOWN_PACKAGES = ("torch", "hivemind", "hydra-core", "numba", "triton")
"""Packages whose versions are shown. All required packages are checked."""
MIN_DISK_BYTES = 2e9
"""Minimum free disk space in bytes: 30 times the size of two checkpoints and the exported model of the default job."""
MIN_MEMORY_BYTES = 1e9
"""Minimum free memory in bytes. A worker of the default job needs half of this, and its libp2p daemon a tenth."""
MIN_OPEN_FILES = 1024
"""Minimum soft limit on open files: p2pd keeps up to 512 connections, and each stream uses a file descriptor too."""


def findings() -> Iterator[Finding]:
    """Run all checks of this machine and yield their findings."""
    yield from versions()
    yield disk(shutil.disk_usage(".").free)
    yield memory(available_bytes())
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield gpu()


def versions() -> Iterator[Finding]:
    """Yield a failed finding for each package whose version does not satisfy the requirements.

    If all versions satisfy them, yield one finding that lists the versions.
    """
    try:
        requirements, python = metadata.requires(PACKAGE) or [], metadata.metadata(PACKAGE)["Requires-Python"]
    except metadata.PackageNotFoundError:
        yield Finding(
            "versions", None, f"{PACKAGE} is not installed: its requirements are unknown", "run pip install -e ."
        )
        return
    found = {"python": platform.python_version(), PACKAGE: metadata.version(PACKAGE)}
    failed = list(mismatch("python", python, found["python"]))
    for requirement in map(Requirement, requirements):
        installed = installed_version(requirement.name)
        if installed is None and requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue  # an optional extra that is not installed
        failed += mismatch(requirement.name, str(requirement.specifier), installed)
        if installed and requirement.name in SHOWN_PACKAGES:
            found[requirement.name] = (
                str(torch.__version__) if requirement.name == "torch" else installed
            )  # torch.__version__ includes the build, e.g. +cpu
    yield from failed
    if not failed:
        yield Finding("versions", True, ", ".join(f"{name} {version}" for name, version in found.items()))


def installed_version(package: str) -> str | None:
    """Return the installed version of a package, or None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def mismatch(package: str, required: str, installed: str | None) -> Iterator[Finding]:
    """Yield a failed finding unless `installed` satisfies `required`. Prereleases (nightly builds) may satisfy it."""
    if installed is None or not SpecifierSet(required).contains(installed, prereleases=True):
        advice = "install that Python" if package == "python" else f"run pip install '{package}{required}'"
        yield Finding("versions", False, f"{package} {installed or 'is missing'}, but {required} is required", advice)


def disk(free: float) -> Finding:
    """Check the free space of the current folder, where runs are stored by default."""
    result, enough = f"{format_bytes(free)} free in this folder", free >= MIN_DISK_BYTES
    advice = "" if enough else f"free {format_bytes(MIN_DISK_BYTES)}, or set run_dir= to a folder on another disk"
    return Finding("disk", enough, result, advice)


def memory(
    free: int | None,
    *,
    needed: float = MIN_MEMORY_BYTES,
    advice: str = "close other programs, or set workers=1 model=nano",
) -> Finding:
    """Check the memory available to a new process: `free` bytes, or None if this system does not report it.

    `needed`: number of bytes that must be free. `advice`: what to do if they are not.
    """
    if free is None:
        return Finding("memory", None, "this system does not report its free memory")
    if free >= needed:
        return Finding("memory", True, f"{format_bytes(free)} free")
    return Finding("memory", False, f"{format_bytes(free)} free, but {format_bytes(needed)} are needed", advice)


def open_files(limit: int) -> Finding:
    """Check the soft limit on the number of open files."""
    if limit == resource.RLIM_INFINITY:
        return Finding("files", True, "no limit on open files")
    advice = "" if limit >= MIN_OPEN_FILES else f"run ulimit -n {4 * MIN_OPEN_FILES}"
    return Finding("files", limit >= MIN_OPEN_FILES, f"{limit} open files allowed", advice)


def gpu() -> Finding:
    """Report the first GPU that torch can use. Without a GPU, the finding is undecided, not failed."""
    if not torch.cuda.is_available():
        return Finding("gpu", None, "torch finds no GPU: training runs on the CPU")
    free, total = torch.cuda.mem_get_info()
    result = f"{torch.cuda.get_device_name()}, {format_bytes(free)} of {format_bytes(total)} free"
    return Finding("gpu", True, result)
