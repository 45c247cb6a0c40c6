"""Time launch and land on a CUDA device, and compare them with plain copies of the same number of bytes.

    .venv/bin/python scripts/bench_gpu.py [--params 1e9] [--chunk 4096] [--k 64] [--peers 8] [--fast float32]
        [--momentum] [--senders] [--repeats 20] [--json FILE]

The tensors have --params values. The script counts the bytes that a step must read or write at least once, and divides
them by the bandwidth of a plain copy of a float32 tensor, measured in the same run. The result is compared with the
time of the step. Every time is the median of the repeats. The rows "torch ..." are measurements of the reference
implementation, which defines the results that the kernels must give. It uses torch.topk and dense tensors, and
processes slices of 2^28 values, to limit the size of temporary tensors. Without a CUDA device, the script prints an
error and exits with 2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from outerloop.kernels.land import Landing, land
from outerloop.kernels.select import Rows, Selection, select

SLICE = 1 << 28
"""Number of values that the torch reference implementation processes at a time."""
BETA, LR, MU = 0.95, 0.7, 0.9
Record = dict[str, str | int | float]


class Job:
    """The tensors of one replica, and the messages of `peers` peers, on the GPU."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.rows, self.repeats = Rows(int(args.params), args.chunk, args.k), args.repeats
        count = self.rows.count
        self.slow = torch.randn(count, device="cuda")
        self.fast = torch.randn(count, device="cuda").mul_(0.01).add_(self.slow).to(getattr(torch, args.fast))
        self.residual = torch.randn(count, device="cuda").mul_(0.01)
        self.momentum = torch.zeros_like(self.slow) if args.momentum else None
        self.how = Landing(0, BETA, args.chunk, args.k, args.senders, LR, MU if args.momentum else 0.0, args.momentum)
        sent = [self.sent_by(peer) for peer in range(args.peers)]
        self.position, self.value = (torch.stack(column) for column in zip(*sent, strict=True))

    def sent_by(self, peer: int) -> tuple[Tensor, Tensor]:
        """Return the positions and the values, one entry per kept value, that a peer selects from random weights."""
        generator = torch.Generator("cuda").manual_seed(peer)
        x = torch.randn(self.rows.count, device="cuda", generator=generator)
        return select(x, None, None, None, None, Selection(0.0, self.rows.chunk, self.rows.k))[:2]

    def launch_bytes(self) -> int:
        """Return the bytes that a launch moves: slow, fast and residual are read, positions and values written."""
        return self.rows.count * (8 + self.fast.element_size()) + 8 * self.rows.kept

    def land_bytes(self) -> int:
        """Return the bytes that a landing moves.

        It reads and writes slow, fast, residual and momentum, and reads the positions and values of all peers.
        """
        weights = 8 + self.fast.element_size() + (4 if self.momentum is not None else 0)
        return 2 * self.rows.count * weights + 8 * self.position.numel()

    def launch(self, run: Callable = select, first: int = 0, last: int | None = None) -> None:
        """Run an implementation of `select` on values first .. last - 1 (default: all)."""
        part = slice(first, last)
        how = Selection(BETA, self.rows.chunk, self.rows.k)
        run(self.slow[part], self.fast[part], self.residual[part], None, None, how)

    def land(self, run: Callable = land, first: int = 0, last: int | None = None) -> None:
        """Run an implementation of `land` on values first .. last - 1 (default: all). `first` must start a chunk."""
        last = self.rows.count if last is None else last
        begin = first // self.rows.chunk * self.rows.k
        sent = slice(begin, begin + Rows(last - first, self.rows.chunk, self.rows.k).kept)
        tensors = self.slow, self.fast, self.residual, None, self.momentum
        weights = [x if x is None else x[first:last] for x in tensors]
        run(*weights, self.position[:, sent], self.value[:, sent], None, None, None, self.how)

    def in_slices(self, step: Callable, run: Callable) -> None:
        """Call `step` with the implementation `run`, slice by slice."""
        size = SLICE // self.rows.chunk * self.rows.chunk
        for first in range(0, self.rows.count, size):
            step(run, first, min(first + size, self.rows.count))


def seconds(step: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a step on the device, after two warm-up steps."""
    times = []
    for repeat in range(repeats + 2):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        step()
        ended.record()
        ended.synchronize()
        if repeat >= 2:
            times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times)


def copy_seconds(job: Job) -> float:
    """Return the median seconds of copying the slow weights. The copy is freed afterwards."""
    copied = torch.empty_like(job.slow)
    return seconds(lambda: copied.copy_(job.slow), job.repeats)


def measure(job: Job) -> list[Record]:
    """Time a copy, a launch and a landing, then the last two in plain torch. Return one row each, plus both sums."""
    copy_bytes, copy_s = 8 * job.rows.count, copy_seconds(job)
    launch_s, land_s = seconds(job.launch, job.repeats), seconds(job.land, job.repeats)
    few = max(1, job.repeats // 5)
    torch_launch_s = seconds(lambda: job.in_slices(job.launch, select.definition), few)
    torch_land_s = seconds(lambda: job.in_slices(job.land, land.definition), few)
    both = job.launch_bytes() + job.land_bytes()
    steps = [
        ("copy", copy_bytes, copy_s),
        ("launch", job.launch_bytes(), launch_s),
        ("land", job.land_bytes(), land_s),
        ("launch + land", both, launch_s + land_s),
        ("torch launch", job.launch_bytes(), torch_launch_s),
        ("torch land", job.land_bytes(), torch_land_s),
        ("torch launch + land", both, torch_launch_s + torch_land_s),
    ]
    return [record(job, *step, bandwidth=copy_bytes / copy_s) for step in steps]


def record(job: Job, step: str, moved: int, took_s: float, *, bandwidth: float) -> Record:
    """Return one row. `ratio` is the measured time over the time in which a copy moves as many bytes."""
    return {
        "device": torch.cuda.get_device_name(),
        "params": job.rows.count,
        "chunk": job.rows.chunk,
        "k": job.rows.k,
        "peers": len(job.position),
        "fast": str(job.fast.dtype).removeprefix("torch."),
        "momentum": int(job.momentum is not None),
        "senders": int(job.how.by_senders),
        "step": step,
        "bytes": moved,
        "s": took_s,
        "bytes_s": moved / bandwidth,
        "ratio": took_s * bandwidth / moved,
    }


def show(records: list[Record]) -> None:
    """Print the records as a table."""
    print(f"{records[0]['device']}, {records[0]['params']:,} values, {records[0]['peers']} peers")
    print(f"{'step':<20}{'GB':>9}{'ms':>10}{'GB/s':>9}{'bytes ms':>10}{'ratio':>7}")
    for r in records:
        gb, took_s = float(r["bytes"]) / 1e9, float(r["s"])
        numbers = f"{gb:9.2f}{took_s * 1e3:10.3f}{gb / took_s:9.0f}{float(r['bytes_s']) * 1e3:10.3f}"
        print(f"{r['step']:<20}{numbers}{r['ratio']:7.2f}")


def main() -> int:
    """Measure and print the table. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=float, default=1e9)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--fast", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--momentum", action="store_true", help="use Nesterov momentum 0.9")
    parser.add_argument("--senders", action="store_true", help="average over senders, not over all peers")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench_gpu: needs a CUDA device", file=sys.stderr)
        return 2
    records = measure(Job(args))
    show(records)
    if args.json:
        Path(args.json).write_text(json.dumps(records, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
