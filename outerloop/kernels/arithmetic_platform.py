"""Describe the properties of a machine that affect the rounding of operations that are not bit-exact.

Some vector units fuse a multiplication and an addition, which rounds once instead of twice. The order of reductions
depends on the vector units and on the number of threads. As far as we know, machines with equal descriptions produce
equal results. Machines with different descriptions may produce different ones.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")
NAMED = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
"""Keys in /proc/cpuinfo whose values identify a processor: the first three on x86, the others on Arm."""
VARIANTS = ("stepping", "cache size", "CPU variant", "CPU revision")
"""Keys that differ between processors with equal values of NAMED: the first two on x86, the others on Arm."""
INSTRUCTION_SETS = ("flags", "Features")
"""Keys whose value lists the instruction sets: on x86, and on Arm."""


def described(device: torch.device | None = None) -> str:
    """Describe this machine in one line: processor, vector units in use, threads per operation, GPU, torch version.

    `device`: the device that computes; None: torch's current GPU, if there is one.
    """
    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    gpu = torch.cuda.get_device_name(device) if on_gpu else "no GPU"
    vectors, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    return f"{processor()}, {vectors}, {threads} threads, {gpu}, torch {torch.__version__}"


def processor() -> str:
    """Return the processor's architecture, vendor, family and model, as far as the system reports them."""
    info = cpu_info()
    names = [platform.processor()] if info is None else values(info, NAMED)
    return " ".join(filter(None, [platform.machine(), *names]))


def processor_variant() -> str:
    """Return what distinguishes processors for which `processor` returns the same text; "" if this is not Linux.

    The text consists of the stepping, the cache size and a hash of the instruction sets. A library may choose another
    algorithm, with another rounding, for each of them. For example, three generations of Xeon have the model 85.
    """
    info = cpu_info() or {}
    sets = sorted(" ".join(values(info, INSTRUCTION_SETS)).split())
    digest = hashlib.sha256(" ".join(sets).encode()).hexdigest()[:16] if sets else ""
    return " ".join(filter(None, [*values(info, VARIANTS), digest]))


def cpu_info() -> dict[str, str] | None:
    """Return what /proc/cpuinfo reports for its first processor, as key -> value, or None if this is not Linux."""
    try:
        lines = [line.partition(":") for line in CPU_INFO.read_text().splitlines()]
    except OSError:
        return None
    return {key.strip(): value.strip() for key, _, value in reversed(lines)}


def values(info: dict[str, str], keys: Sequence[str]) -> list[str]:
    """Return the values of those keys that `info` contains."""
    return [info[key] for key in keys if key in info]
