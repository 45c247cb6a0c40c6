"""Compare the compression time of a round with its unavoidable memory traffic, and with other implementations.

    .venv/bin/python scripts/bench_compress.py [--params 16e6,64e6] [--threads 1,2] [--k 64] [--payloads 8]
        [--codec two_bit] [--real FILE.safetensors] [--peers DIR] [--repeats 5] [--json FILE]

The script prints one row for each size, number of threads and distribution of x = (slow − fast) + β · residual:
gaussian, laplace, and, with --real, the values of a file that scripts/save_buffers.py wrote, repeated to fill the size.
Times are medians of `repeats` interleaved runs in this process, so ratios are reliable even if absolute figures drift.

    bare     loops that access the memory of a launch and a landing but compute almost nothing: the lower bound
    launch   select, quantize, pack one payload          decode   all payloads into positions and values
    apply    all payloads to residual, slow and fast weights (SGD)          step = launch, then decode and apply

energy_sent is the fraction of Σ x² that one payload captures; gaussian_bound is the largest fraction that a code of the
same size can capture if the values are Gaussian: 1 − 2^(−2 · bits per parameter).

The parameters are split into tensors of 4M values, like the matrices of a model of that size. A parameter takes 12
bytes, and 8 payloads take another 2.3 bytes per parameter, so 1e9 parameters fit into 16 GB.

DIR may contain templar/compress.py (github.com/tplr-ai/templar, src/tplr/compress.py) and demo/demo.py
(github.com/bloc97/DeMo); they need einops, e.g. `pip install --target DIR einops`. hivemind's codecs are measured too.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from compress_case import BETA, CHUNK, CODECS, ROUND, Case, Piece
from compress_peers import peer_sides
from result_rows import Row, show
from safetensors.torch import load_file
from torch import Tensor

from outerloop.kernels.select import Selection, offer, select
from outerloop.kernels.specs import sparse_codec

REST = 0.03


def medians(sides: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each function in `sides`. They run in turn, `repeats` times after one warm-up.

    A pause precedes each run, because torch's threads spin for some milliseconds after the previous run.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, side in sides.items():
            time.sleep(REST)
            began = time.perf_counter()
            side()
            if turn:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(t) for name, t in times.items()}


def peak_kb() -> int:
    """Return the peak resident memory of this process in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(case: Case, kind: str, threads: int, repeats: int, peers: dict[str, Callable]) -> Row:
    """Measure a compression case with `threads` threads, and return its row."""
    torch.set_num_threads(threads)
    row = {"params": case.params, "threads": threads, "kind": kind, "codec": case.codec}
    row |= {"k": case.topk.k, "payloads": case.payloads}
    before = peak_kb()
    ours: dict[str, Callable[[], Any]] = {
        "copy": lambda: case.each(lambda piece: piece.fast.copy_(piece.slow)),
        "bare_launch": lambda: case.each(Piece.bare_launch),
        "bare_land": lambda: case.each(Piece.bare_land),
        "launch": case.launch,
        "decode": case.decode,
        "apply": case.apply,
        "decode_apply": case.decode_apply,
        "step": case.step,
    }
    s = medians(ours | {name: partial(side, case) for name, side in peers.items()}, repeats)
    bare, entries = s["bare_launch"] + s["bare_land"], sum(kept.value.numel() for kept in case.decoded.values())
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
    """Return the size of this peer's payload in bits, and how accurately it represents the compressor's input x."""
    index = bits = kept = 0
    error = whole = missed = energy = 0.0
    for name, parts in case.launch().items():
        piece, context = case.pieces[name], case.route.codec.context(ROUND, name)
        x = offer(piece.slow, piece.fast, piece.residual, BETA)
        sparse = sparse_codec(case.compress, x.shape)
        assert sparse is not None
        signs = sparse.signs(len(x), context)
        _, value_M, _ = select(x, None, None, None, signs, Selection(0.0, CHUNK, case.topk.k))
        _, (decoded_M,) = case.topk.unpack([parts], case.topk.rows_at(len(x), context), context)
        index += 8 * parts["index"].numel()
        bits += 8 * sum(part.numel() * part.itemsize for part in parts.values())
        kept += len(value_M)
        error += float((decoded_M - value_M).double().square().sum())
        whole += float(value_M.double().square().sum())
        missed += float((case.compress.decode(parts, x.shape, context) - x).double().square().sum())
        energy += float(x.double().square().sum())
    k = case.topk.k
    bound = (math.lgamma(CHUNK + 1) - math.lgamma(k + 1) - math.lgamma(CHUNK - k + 1)) / math.log(2) / k
    return {
        "index_bits": index / kept,
        "index_over_bound": index / kept / bound,
        "bits_per_value": bits / kept,
        "bits_per_param": bits / case.params,
        "relative_error": (error / whole) ** 0.5,
        "energy_sent": 1 - missed / energy,
        "gaussian_bound": 1 - 2 ** (-2 * bits / case.params),
    }


def whole_chunks(buffers: dict[str, Tensor]) -> Tensor:
    """Concatenate the tensors, each truncated to whole chunks, so that no chunk spans two tensors."""
    flat = [x.float().reshape(-1) for x in buffers.values()]
    return torch.cat([x[: len(x) // CHUNK * CHUNK] for x in flat])


def numbers(text: str) -> list[int]:
    """Parse "16e6,64e6" as [16000000, 64000000]."""
    return [int(float(word)) for word in text.split(",")]


def main() -> None:
    """Measure every configuration, and print each row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=numbers, default=numbers("16e6,64e6"))
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--codec", choices=CODECS, default=CODECS[0])
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
            case = Case(kind, params, args.codec, args.k, args.payloads, real)
            bits = quality(case)  # before the measured landings change the weights
            for threads in args.threads:
                rows.append(measure(case, kind, threads, args.repeats, peers) | bits)
                show(rows[-1])
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
