"""What of a machine decides the bits that arithmetic gives which is not defined operation by operation.

Vector units fuse multiply and add or do not, and reductions go in an order that depends on them and on the threads. Two
machines of one description round alike as far as that is known; machines of different descriptions need not.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")
NAMED = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
"""Lines of /proc/cpuinfo that name a processor: the first three on x86, the others on Arm."""


def described() -> str:
    """This machine in one line: processor, vector units in use, threads of one operation, GPU, release of torch."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    vectors, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    return f"{processor()}, {vectors}, {threads} threads, {gpu}, torch {torch.__version__}"


def processor() -> str:
    """Architecture, vendor, family and model, as far as the system tells them."""
    try:
        lines = [line.partition(":") for line in CPU_INFO.read_text().splitlines()]
        told = {key.strip(): value.strip() for key, _, value in reversed(lines)}
        names = [told[name] for name in NAMED if name in told]
    except OSError:  # not Linux
        names = [platform.processor()]
    return " ".join(filter(None, [platform.machine(), *names]))
