"""Run other compression implementations for bench_compress.py.

The code of Templar and DeMo comes from a folder that the user provides; this repository has no copy of it.
"""

from __future__ import annotations

import importlib
import logging
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from compress_case import BETA, CHUNK, Case, Piece
from hivemind.compression import CompressionInfo, Float16Compression


def peer_sides(folder: Path | None) -> dict[str, Callable[[Case], Any]]:
    """Return a map from name to implementation. Names ending in _step run a whole outer step, others only a launch."""
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
    """Run Templar's launch on a copy of the residual: decay and add, compress, decompress, subtract."""
    buffer = piece.residual * BETA
    buffer.add_(piece.slow - piece.fast)
    rows_CL = buffer[: len(buffer) // CHUNK * CHUNK].view(-1, CHUNK)
    sent = codec.compress(rows_CL, k)
    rows_CL.sub_(codec.decompress(rows_CL, *sent))
    return sent


def templar_step(codec: Any, k: int, peers: int, piece: Piece) -> None:
    """Run Templar's outer step: launch, batched decompression of all payloads, SGD, and a copy of slow to fast."""
    index, value, shape, total, quantized = templar_feedback(codec, k, piece)
    mean = codec.batch_decompress(
        torch.empty(shape), [index] * peers, [value] * peers, shape, total, [quantized] * peers
    )
    piece.slow[: mean.numel()].view_as(mean).sub_(mean, alpha=1e-9)
    piece.fast.copy_(piece.slow)


def demo_compress(codec: Any, k: int, piece: Piece) -> None:
    """Run DeMo's local step without the cosine transform: top-k compression and decompression of every block."""
    x_CL = piece.residual[: len(piece.residual) // CHUNK * CHUNK].view(-1, CHUNK)
    codec.decompress(x_CL, *codec.compress(x_CL, k))


def hivemind_fp16(piece: Piece) -> None:
    """Compress with a dense codec of hivemind's averager."""
    Float16Compression().compress(piece.residual, CompressionInfo.from_tensor(piece.residual))
