"""What compressing a round costs, beside the memory traffic it cannot avoid and beside other implementations.

    .venv/bin/python scripts/bench_compress.py [--params 16e6,64e6] [--threads 1,2] [--k 64] [--payloads 8]
        [--real FILE.safetensors] [--peers DIR] [--repeats 5] [--json FILE]

One row for each size, number of threads and distribution of x = (slow − fast) + β · residual: gaussian, laplace, and
real with --real (scripts/save_buffers.py makes such a file; it is repeated to the size). Times are medians of
`repeats` interleaved runs in this process, so ratios hold where absolute figures drift.

    bare     loops that move the bytes of the two passes and compute next to nothing: the yardstick
    launch   select, code, pack one payload          decode   all payloads to positions and values
    apply    all payloads to residual, slow and fast weights (SGD)          step = launch, then decode and apply

The parameters lie in tensors of 4M values, as the matrices of a model of that size do. A parameter takes 12 bytes, and
8 payloads 2.3 more: 1e9 of them fit into 16 GB.

DIR may hold templar/compress.py (github.com/tplr-ai/templar, src/tplr/compress.py) and demo/demo.py
(github.com/bloc97/DeMo); they need einops, e.g. `pip install --target DIR einops`. hivemind's codecs are measured too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
import resource
import statistics
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hivemind.compression import CompressionInfo, Float16Compression
from numba import njit
from safetensors.torch import load_file
from torch import Tensor

from outerloop import wire
from outerloop.aggregate.senders import Senders
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.feedback.ef import ErrorFeedback
from outerloop.kernels.select import offer, select
from outerloop.kernels.threads import share
from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.payload import Payload
from outerloop.routes.fused import Fused, Kept
from outerloop.routes.plain import Plain
from outerloop.types import Parts

CHUNK, BETA, PIECE = 4096, 0.95, 1 << 22
ROUND = 10**6
Row = dict[str, Any]


@njit(nogil=True)
def read_three(slow, fast, residual, first, last, out):
    """The bytes of a launch, into 64 sums side by side: one alone would wait for its own additions."""
    lanes = np.zeros(64, np.float32)
    for block in range(first, last - 63, 64):
        x, y, z = slow[block : block + 64], fast[block : block + 64], residual[block : block + 64]
        for lane in range(64):
            lanes[lane] += (x[lane] - y[lane]) + z[lane]
    out[0] = lanes.sum()


@njit(nogil=True)
def write_three(slow, fast, residual, first, last):
    """The bytes of a landing."""
    for i in range(first, last):
        x = slow[i]
        residual[i] = (x - fast[i]) + residual[i]
        slow[i] = x
        fast[i] = x


class Piece:
    """One tensor and its state."""

    def __init__(self, residual: Tensor, generator: torch.Generator) -> None:
        self.residual, self.sink = residual, np.zeros(1, np.float32)
        self.slow = torch.randn(len(residual), generator=generator)
        self.fast = self.slow.clone()

    def bare_launch(self) -> None:
        """The bytes of a launch."""
        arrays = [x.numpy() for x in (self.slow, self.fast, self.residual)]
        share(lambda a, b: read_three(*arrays, a, b, self.sink), len(self.slow), values=len(self.slow))

    def bare_land(self) -> None:
        """The bytes of a landing."""
        arrays = [x.numpy() for x in (self.slow, self.fast, self.residual)]
        share(lambda a, b: write_three(*arrays, a, b), len(self.slow), values=len(self.slow))


class Case:
    """One model's worth of tensors, PIECE values each, on the route that a training run takes."""

    def __init__(self, kind: str, params: int, k: int, payloads: int, real: Tensor | None) -> None:
        generator = torch.Generator().manual_seed(0)
        self.topk = TopK(chunk=CHUNK, k=k, values=TwoBit(chunk=None), index=Rice())
        self.payloads, self.params, self.peers = payloads, params, [f"peer{i}" for i in range(payloads)]
        sizes = {f"piece{start:012d}": min(PIECE, params - start) for start in range(0, params, PIECE)}
        self.pieces = {name: Piece(noise(kind, n, generator, real), generator) for name, n in sizes.items()}
        self.slow = {name: piece.slow for name, piece in self.pieces.items()}
        self.fast = {name: piece.fast for name, piece in self.pieces.items()}
        self.route = self.fused()
        self.messages = [self.message(peer, kind, generator, real) for peer in self.peers]
        self.combined = self.combine()
        self.quality = quality(self)

    def fused(self) -> Fused:
        """Top-k, error feedback, mean over senders, plain SGD."""
        feedback, payload = ErrorFeedback(beta=BETA), Payload(self.topk, seed=0)
        for name, piece in self.pieces.items():
            feedback.residual.put(name, piece.residual)
        method = OuterOptimizer(optimizer=partial(torch.optim.SGD, lr=1.0, momentum=0.0))
        method.init(self.slow)
        plain = Plain(method=method, feedback=feedback, aggregate=Senders(), payload=payload, peer=self.peers[0])
        return Fused(plain, aside=False)

    def message(self, peer: str, kind: str, generator: torch.Generator, real: Tensor | None) -> wire.Message:
        """What one peer sends, of noise of its own; a tensor at a time."""
        header = wire.Header(round=ROUND, fragment=0, samples=1, schema=0, slow=0, peer=peer)
        parts = {}
        for name, slow in self.slow.items():
            parts[name] = self.route.payload.encode(ROUND, name, noise(kind, len(slow), generator, real), leads=False)
        return wire.Message(header, parts)

    def launch(self) -> dict[str, Parts]:
        """slow, fast, residual -> one payload."""
        return self.route.launch(ROUND, self.slow, self.fast).parts

    def combine(self) -> dict[str, Kept]:
        """All payloads -> positions and values."""
        return self.route.combine(self.messages, self.slow)

    def apply(self) -> None:
        """Positions and values into residual, slow and fast weights."""
        self.route.land(self.combined, self.messages, self.slow, self.fast, counted=True)

    def decode_apply(self) -> None:
        """All payloads into the three."""
        self.route.land(self.combine(), self.messages, self.slow, self.fast, counted=True)

    def step(self) -> None:
        """A whole outer step but for the network."""
        self.launch()
        self.decode_apply()

    def each(self, work: Callable[[Piece], Any]) -> None:
        """One piece after the other."""
        for piece in self.pieces.values():
            work(piece)


def noise(kind: str, params: int, generator: torch.Generator, real: Tensor | None) -> Tensor:
    """x of one peer."""
    if kind == "real":
        assert real is not None
        shift = int(torch.randint(len(real), (1,), generator=generator)) // CHUNK * CHUNK
        return real.roll(shift).repeat(-(-params // len(real)))[:params].clone()
    x = torch.randn(params, generator=generator).mul_(0.01)
    if kind == "laplace":
        x.copy_(torch.empty(params).exponential_(generator=generator).mul_(0.01) * x.sign())
    return x


def medians(sides: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of each, run in turn, `repeats` times after one that warms up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            if turn:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(t) for name, t in times.items()}


def peak_kb() -> int:
    """The most memory that this process has held at a time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(case: Case, kind: str, threads: int, repeats: int, peers: dict[str, Callable]) -> Row:
    """One row."""
    torch.set_num_threads(threads)
    row = {"params": case.params, "threads": threads, "kind": kind, "k": case.topk.k, "payloads": case.payloads}
    before = peak_kb()
    ours: dict[str, Callable[[], Any]] = {
        "copy": lambda: case.each(lambda piece: piece.fast.copy_(piece.slow)),
        "bare_launch": lambda: case.each(Piece.bare_launch),
        "bare_land": lambda: case.each(Piece.bare_land),
        "launch": case.launch,
        "decode": case.combine,
        "apply": case.apply,
        "decode_apply": case.decode_apply,
        "step": case.step,
    }
    s = medians(ours | {name: partial(side, case) for name, side in peers.items()}, repeats)
    bare, entries = s["bare_launch"] + s["bare_land"], sum(kept.value.numel() for kept in case.combined.values())
    row |= case.quality
    row |= {
        "memory_gb_per_s": 8e-9 * case.params / s["copy"],
        "launch_mparams_per_s": 1e-6 * case.params / s["launch"],
        "decode_apply_mparams_per_s": 1e-6 * case.params / s["decode_apply"],
        "decode_mentries_per_s": 1e-6 * entries / s["decode"],
        "bare_ms": 1e3 * bare,
        "step_ms": 1e3 * s["step"],
        "step_over_bare": s["step"] / bare,
        "peak_extra_mb": max(0, peak_kb() - before) / 1024,
        "peak_gb": peak_kb() * 1024e-9,
    }
    ours_for = {name: "step" if name.endswith("_step") else "launch" for name in peers}
    return row | {f"{name}_over_ours": s[name] / s[side] for name, side in ours_for.items()}


def quality(case: Case) -> Row:
    """Bits and error of this peer's payload."""
    index = bits = kept = 0
    error = whole = 0.0
    for name, parts in case.launch().items():
        piece, moment = case.pieces[name], case.route.payload.moment(ROUND, name)
        x = offer(piece.slow, piece.fast, piece.residual, BETA)
        _, value_M, _ = select(x, None, None, None, 0.0, CHUNK, case.topk.k)
        _, (decoded_M,) = case.topk.unpack([parts], case.topk.rows_at(len(x), moment), moment)
        index += 8 * parts["index"].numel()
        bits += 8 * sum(part.numel() * part.itemsize for part in parts.values())
        kept += len(value_M)
        error += float((decoded_M - value_M).double().square().sum())
        whole += float(value_M.double().square().sum())
    k = case.topk.k
    bound = (math.lgamma(CHUNK + 1) - math.lgamma(k + 1) - math.lgamma(CHUNK - k + 1)) / math.log(2) / k
    return {
        "index_bits": index / kept,
        "index_over_bound": index / kept / bound,
        "bits_per_value": bits / kept,
        "bits_per_param": bits / case.params,
        "relative_error": (error / whole) ** 0.5,
    }


def peer_sides(folder: Path | None) -> dict[str, Callable[[Case], Any]]:
    """Other implementations by name; those that end in _step do a whole outer step, the others a launch."""
    sides: dict[str, Callable[[Case], Any]] = {"hivemind_fp16": lambda case: case.each(hivemind_fp16)}
    if folder is None:
        return sides
    sys.path[:0] = [str(folder), str(folder / "templar"), str(folder / "demo")]
    if (folder / "templar" / "compress.py").exists():
        stub = types.ModuleType("tplr")
        stub.logger = logging.getLogger("tplr")  # type: ignore[attr-defined]
        sys.modules["tplr"] = stub
        templar = importlib.import_module("compress")
        codec = templar.TopKCompressor(use_quantization=True, quantization_bins=4, quantization_range=6)
        sides["templar_feedback"] = lambda case: case.each(partial(templar_feedback, codec, case.topk.k))
        sides["templar_step"] = lambda case: case.each(partial(templar_step, codec, case.topk.k, case.payloads))
    if (folder / "demo" / "demo.py").exists():
        demo = importlib.import_module("demo").CompressDCT()
        sides["demo_compress"] = lambda case: case.each(partial(demo_compress, demo, case.topk.k))
    return sides


def templar_feedback(codec: Any, k: int, piece: Piece) -> tuple:
    """Their launch: decay and add, compress, decompress, subtract; in a copy of the buffer."""
    buffer = piece.residual * BETA
    buffer.add_(piece.slow - piece.fast)
    rows_CL = buffer[: len(buffer) // CHUNK * CHUNK].view(-1, CHUNK)
    sent = codec.compress(rows_CL, k)
    rows_CL.sub_(codec.decompress(rows_CL, *sent))
    return sent


def templar_step(codec: Any, k: int, peers: int, piece: Piece) -> None:
    """Their whole outer step: the launch above, all payloads decompressed together, SGD, and a copy back."""
    index, value, shape, total, quantized = templar_feedback(codec, k, piece)
    mean = codec.batch_decompress(
        torch.empty(shape), [index] * peers, [value] * peers, shape, total, [quantized] * peers
    )
    piece.slow[: mean.numel()].view_as(mean).sub_(mean, alpha=1e-9)
    piece.fast.copy_(piece.slow)


def demo_compress(codec: Any, k: int, piece: Piece) -> None:
    """Their local step without the cosine transform: top-k of every block and its decompression."""
    x_CL = piece.residual[: len(piece.residual) // CHUNK * CHUNK].view(-1, CHUNK)
    codec.decompress(x_CL, *codec.compress(x_CL, k))


def hivemind_fp16(piece: Piece) -> None:
    """A dense codec of hivemind's averager."""
    Float16Compression().compress(piece.residual, CompressionInfo.from_tensor(piece.residual))


def whole_chunks(buffers: dict[str, Tensor]) -> Tensor:
    """The tensors one behind the other, each cut to whole chunks, so that no chunk mixes two of them."""
    flat = [x.float().reshape(-1) for x in buffers.values()]
    return torch.cat([x[: len(x) // CHUNK * CHUNK] for x in flat])


def numbers(text: str) -> list[int]:
    """ "16e6,64e6" -> [16000000, 64000000]"""
    return [int(float(word)) for word in text.split(",")]


def main() -> None:
    """Measure every row, print each as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=numbers, default=numbers("16e6,64e6"))
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--payloads", type=int, default=8)
    parser.add_argument("--real", type=Path, metavar="FILE")
    parser.add_argument("--peers", type=Path, metavar="DIR")
    parser.add_argument("--kinds", default="gaussian,laplace,real")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    real = whole_chunks(load_file(args.real)) if args.real else None
    kinds = [kind for kind in args.kinds.split(",") if kind != "real" or real is not None]
    peers, rows = peer_sides(args.peers), []
    for params in args.params:
        for kind in kinds:
            case = Case(kind, params, args.k, args.payloads, real)
            for threads in args.threads:
                rows.append(measure(case, kind, threads, args.repeats, peers))
                print("  ".join(f"{key} {shown(value)}" for key, value in rows[-1].items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def shown(value: Any) -> str:
    """Four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
