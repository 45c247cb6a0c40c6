"""CPU kernels of the operators in ../rice.py and ../elias_fano.py: compiled, multi-threaded, with identical bytes.

The Rice encoder first computes the sizes of all lanes, then writes each lane at its offset. The import requires numba.

Suffixes of names: M kept values in total, R lanes, B bytes, P peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels import elias_fano, positions, rice
from outerloop.kernels.cpu import elias_fano_loops, rice_loops
from outerloop.kernels.select import Rows
from outerloop.kernels.threads import parallel_loops, parallel_rows


def run_all(loops: Iterable[Callable[[int, int], bool] | None], pieces: int, rows: Rows) -> list[bool]:
    """Run loops on all threads, each split into `pieces` pieces. For each loop, return whether it succeeded.

    A loop succeeds if it is not None and returns True for all of its pieces.
    """
    present = list(loops)
    passed = [loop is not None for loop in present]

    def run_part(i: int, loop: Callable[[int, int], bool], first: int, stop: int) -> None:
        if not loop(first, stop):
            passed[i] = False

    parallel_loops([partial(run_part, i, loop) for i, loop in enumerate(present) if loop], pieces, values=rows.kept)
    return passed


def checked_positions(position_M: Tensor, rows: Rows) -> np.ndarray:
    """Return the positions as an array, after checking their number and dtype, which the loops rely on."""
    assert position_M.shape == (rows.kept,) and position_M.dtype == torch.int32
    return position_M.contiguous().numpy()


def lane_offsets(size_R: np.ndarray) -> np.ndarray:
    """Convert the sizes of R lanes in bytes to the offset of each lane, then the end of the last: (R + 1,) int64."""
    return np.concatenate([np.zeros(1, np.int64), size_R.cumsum()]) + 2 * len(size_R)


@rice.rice_encode.kernel("CPU")
def rice_encode(position_M: Tensor, count: int, chunk: int, k: int) -> Tensor:
    """Implement `rice_encode` on the CPU."""
    rows, shape = Rows(count, chunk, k), (count, chunk, k)
    code = rice.lane_rows(rows), rice.rice_bits(rows)
    position, size_R = checked_positions(position_M, rows), np.empty(rice.lane_count(rows), np.int64)
    measure = partial(rice_loops.sizes, position, size_R, shape, *code)
    positions.check_valid(*run_all([measure], len(size_R), rows))
    border = lane_offsets(size_R)
    byte_B = torch.empty(int(border[-1]), dtype=torch.uint8)
    byte_B[: 2 * len(size_R)] = torch.from_numpy(size_R.astype("<u2").view(np.uint8))
    write = partial(rice_loops.write, position, byte_B.numpy(), border, shape, *code)
    parallel_rows(write, len(size_R), values=rows.kept)
    return byte_B


@rice.rice_decode.kernel("CPU")
def rice_decode(bytes: list[Tensor], count: int, chunk: int, k: int) -> tuple[Tensor, Tensor]:
    """Implement `rice_decode` on the CPU."""
    rows, shape = Rows(count, chunk, k), (count, chunk, k)
    code = rice.lane_rows(rows), rice.rice_bits(rows)
    min_bytes, max_bytes, lanes = (
        rice.rice_min_bytes(rows),
        rice.rice_max_bytes(rows),
        rice.lane_count(rows),
    )
    position_PM = torch.empty(len(bytes), rows.kept, dtype=torch.int32)

    def reader(byte_B: Tensor, position_M: np.ndarray) -> Callable[[int, int], bool] | None:
        byte, border = byte_B.contiguous().numpy(), np.empty(lanes + 1, np.int64)
        if not min_bytes <= byte.size <= max_bytes or not rice_loops.find_lanes(byte, border):
            return None
        return partial(rice_loops.read, byte, position_M, border, shape, *code)

    readers = map(reader, bytes, position_PM.numpy())
    return position_PM, torch.tensor(run_all(readers, lanes, rows))


@elias_fano.elias_fano_encode.kernel("CPU")
def elias_fano_encode(position_M: Tensor, count: int, chunk: int, k: int) -> Tensor:
    """Implement `elias_fano_encode` on the CPU."""
    rows, low = Rows(count, chunk, k), elias_fano.elias_fano_bits(Rows(count, chunk, k))
    size = elias_fano.elias_fano_bytes(chunk, k, low)
    byte_B = torch.empty(sum(elias_fano.block_bytes(rows)), dtype=torch.uint8)
    write = partial(
        elias_fano_loops.write, checked_positions(position_M, rows), byte_B.numpy(), (count, chunk, k), low, size
    )
    positions.check_valid(*run_all([write], rows.chunks, rows))
    return byte_B


@elias_fano.elias_fano_decode.kernel("CPU")
def elias_fano_decode(bytes: list[Tensor], count: int, chunk: int, k: int) -> tuple[Tensor, Tensor]:
    """Implement `elias_fano_decode` on the CPU."""
    rows, low = Rows(count, chunk, k), elias_fano.elias_fano_bits(Rows(count, chunk, k))
    size = elias_fano.elias_fano_bytes(chunk, k, low)
    position_PM = torch.empty(len(bytes), rows.kept, dtype=torch.int32)

    def reader(byte_B: Tensor, position_M: np.ndarray) -> Callable[[int, int], bool] | None:
        if byte_B.numel() != sum(elias_fano.block_bytes(rows)):
            return None
        return partial(elias_fano_loops.read, byte_B.contiguous().numpy(), position_M, (count, chunk, k), low, size)

    return position_PM, torch.tensor(run_all(map(reader, bytes, position_PM.numpy()), rows.chunks, rows))
