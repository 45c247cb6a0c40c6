"""Describe the properties of a machine that affect the rounding of operations that are not bit-exact.

Some vector units fuse a multiplication and an addition, which rounds once instead of twice. The order of reductions
depends on the vector units and on the number of threads. As far as we know, machines with equal descriptions produce
equal results. Machines with different descriptions may produce different ones.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")
NAMED = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
"""Keys in /proc/cpuinfo whose values identify a processor: the first three on x86, the others on Arm."""


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
    try:
        lines = [line.partition(":") for line in CPU_INFO.read_text().splitlines()]
        reported = {key.strip(): value.strip() for key, _, value in reversed(lines)}
        names = [reported[name] for name in NAMED if name in reported]
    except OSError:  # not Linux
        names = [platform.processor()]
    return " ".join(filter(None, [platform.machine(), *names]))
