"""Define the tensors, the pipeline and the lower-bound loops that bench_compress.py measures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from outerloop import wire
from outerloop.aggregate.senders import Senders
from outerloop.compress.index.rice import Rice
from outerloop.compress.rotated import Rotated
from outerloop.compress.sign import Sign
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.core.codec import UpdateCodec
from outerloop.core.pipeline.dense import DensePipeline
from outerloop.core.pipeline.fused import FusedPipeline, SparseUpdates
from outerloop.feedback.ef import ErrorFeedback
from outerloop.kernels.threads import parallel_rows
from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.types import Parts

CODECS = ("two_bit", "sign", "rotated")
"""How kept values are quantized: to 2 bits, to 1 bit (sign), or to 1 bit after a rotation of each chunk."""
CHUNK, BETA, PIECE = 4096, 0.95, 1 << 22
ROUND = 10**6


@njit(nogil=True)
def read_three(slow, fast, residual, first, last, out):
    """Read the memory that a launch reads.

    The values are added to 64 independent sums, because additions to a single sum would wait for each other.
    """
    lanes = np.zeros(64, np.float32)
    for block in range(first, last - 63, 64):
        x, y, z = slow[block : block + 64], fast[block : block + 64], residual[block : block + 64]
        for lane in range(64):
            lanes[lane] += (x[lane] - y[lane]) + z[lane]
    out[0] = lanes.sum()


@njit(nogil=True)
def write_three(slow, fast, residual, first, last):
    """Read and write the memory that a landing reads and writes, chunk by chunk.

    A single loop over all three arrays would take twice as long, and four times as long if their addresses differ by a
    multiple of 4 KiB, because the CPU would then mistake loads for reads of preceding stores (4K aliasing).
    """
    for start in range(first, last, CHUNK):
        stop = min(start + CHUNK, last)
        x, y, z = slow[start:stop], fast[start:stop], residual[start:stop]
        for i in range(x.size):
            z[i] = (x[i] - y[i]) + z[i]
        for i in range(x.size):
            x[i] = x[i] + np.float32(0)
        for i in range(x.size):
            y[i] = x[i]


class Piece:
    """The residual, slow weights and fast weights of one tensor."""

    def __init__(self, residual: Tensor, generator: torch.Generator) -> None:
        self.residual, self.sink = residual, np.zeros(1, np.float32)
        self.slow = torch.randn(len(residual), generator=generator)
        self.fast = self.slow.clone()

    def bare_launch(self) -> None:
        """Read the memory that a launch reads, on all threads."""
        arrays = [x.numpy() for x in (self.slow, self.fast, self.residual)]
        parallel_rows(lambda a, b: read_three(*arrays, a, b, self.sink), len(self.slow), values=len(self.slow))

    def bare_land(self) -> None:
        """Read and write the memory that a landing reads and writes, on all threads."""
        arrays = [x.numpy() for x in (self.slow, self.fast, self.residual)]
        parallel_rows(lambda a, b: write_three(*arrays, a, b), len(self.slow), values=len(self.slow))


class Case:
    """The tensors of one model, of PIECE values each, and the pipeline that a training run uses for them."""

    def __init__(self, kind: str, params: int, codec: str, k: int, payloads: int, real: Tensor | None) -> None:
        generator = torch.Generator().manual_seed(0)
        values = TwoBit(chunk=None) if codec == "two_bit" else Sign(chunk=None)
        self.topk = TopK(chunk=CHUNK, k=k, values=values, index=Rice())
        self.codec = codec
        self.compress = Rotated(chunk=CHUNK, of=self.topk) if codec == "rotated" else self.topk
        self.payloads, self.params, self.peers = payloads, params, [f"peer{i}" for i in range(payloads)]
        sizes = {f"piece{start:012d}": min(PIECE, params - start) for start in range(0, params, PIECE)}
        self.pieces = {name: Piece(noise(kind, n, generator, real), generator) for name, n in sizes.items()}
        self.slow = {name: piece.slow for name, piece in self.pieces.items()}
        self.fast = {name: piece.fast for name, piece in self.pieces.items()}
        self.route = self.fused()
        self.messages = [self.message(peer, kind, generator, real) for peer in self.peers]
        self.decoded = self.decode()

    def fused(self) -> FusedPipeline:
        """Return the pipeline for top-k, error feedback, mean over senders and plain SGD."""
        feedback, codec = ErrorFeedback(beta=BETA), UpdateCodec(self.compress, seed=0)
        for name, piece in self.pieces.items():
            feedback.residual.put(name, piece.residual)
        method = OuterOptimizer(optimizer=partial(torch.optim.SGD, lr=1.0, momentum=0.0))
        method.init(self.slow)
        plain = DensePipeline(method=method, feedback=feedback, aggregate=Senders(), codec=codec, peer=self.peers[0])
        return FusedPipeline(plain, on_copy=False)

    def message(self, peer: str, kind: str, generator: torch.Generator, real: Tensor | None) -> wire.Message:
        """Return one peer's message, which encodes values drawn for this peer (`noise`) tensor by tensor."""
        header = wire.Header(round=ROUND, fragment=0, samples=1, schema=0, slow=0, peer=peer)
        parts = {}
        for name, slow in self.slow.items():
            parts[name] = self.route.codec.encode(ROUND, name, noise(kind, len(slow), generator, real), leads=False)
        return wire.Message(header, parts)

    def launch(self) -> dict[str, Parts]:
        """Encode one payload from the slow weights, the fast weights and the residual."""
        return self.route.launch(ROUND, self.slow, self.fast).parts

    def decode(self) -> dict[str, SparseUpdates]:
        """Decode all payloads into positions and values per tensor."""
        return self.route.decode(self.messages, self.slow)

    def apply(self) -> None:
        """Apply the decoded positions and values to the residual, the slow weights and the fast weights."""
        self.route.land(self.decoded, self.messages, self.slow, self.fast, {}, included=True)

    def decode_apply(self) -> None:
        """Decode all payloads and apply them."""
        self.route.land(self.decode(), self.messages, self.slow, self.fast, {}, included=True)

    def step(self) -> None:
        """Run a whole outer step without the network: launch, decode and apply."""
        self.launch()
        self.decode_apply()

    def each(self, work: Callable[[Piece], Any]) -> None:
        """Call `work` for each piece in sequence."""
        for piece in self.pieces.values():
            work(piece)


def noise(kind: str, params: int, generator: torch.Generator, real: Tensor | None) -> Tensor:
    """Return one peer's compressor input: random values of the distribution `kind`, or the real values.

    Real values are repeated to `params` values and cyclically shifted by a random number of chunks.
    """
    if kind == "real":
        assert real is not None
        shift = int(torch.randint(len(real), (1,), generator=generator)) // CHUNK * CHUNK
        return real.roll(shift).repeat(-(-params // len(real)))[:params].clone()
    x = torch.randn(params, generator=generator).mul_(0.01)
    if kind == "laplace":
        x.copy_(torch.empty(params).exponential_(generator=generator).mul_(0.01) * x.sign())
    return x
