"""What must hold whatever bytes a peer sends, for every codec; `forged` makes the bytes.

Whoever sends a payload can make every byte of it, the checksum included. Decoding it must end in InvalidMessage or in
finite float32 tensors of the right shapes, and ask for no more memory than an honest one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outerloop import wire
from outerloop.compress.by_size import compressor_of
from outerloop.compress.identity import Identity
from outerloop.compress.index.elias_fano import EliasFano
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.compress.uniform import Uniform
from outerloop.config import instantiate, load
from outerloop.core.codec import UpdateCodec
from outerloop.core.pipeline.fused import decode_kept
from outerloop.kernels.elias_fano import elias_fano_decode
from outerloop.kernels.land import Landing, land
from outerloop.kernels.rice import rice_decode
from outerloop.kernels.two_bit import two_bit_decode
from outerloop.types import CodecContext, Contribution, Round, Tensors

EXTRA = {
    "topk_warming": TopK(chunk=512, k=5, values=TwoBit(chunk=None), index=EliasFano(), warmup_rounds=10),
    "topk_exact": TopK(chunk=512, k=5, values=Identity(), index=Rice()),
    "topk_masks": TopK(chunk=64, k=40, values=Uniform(bits=2, chunk=7), index=Rice()),
}
"""What no yaml of configs/compress joins."""
CODECS = [*load.groups()["compress"], *EXTRA]
LIKE = {name: torch.zeros(shape) for name, shape in {"big": (67, 72), "bias": (5,), "one": (), "none": (0, 3)}.items()}
SCHEMA = {name: x.shape for name, x in LIKE.items()}
PEER, ROUND = "peer-π", Round(3, 1)
LONGEST_REASON = 1000
"""Characters of a InvalidMessage: it goes into logs and metrics."""


@cache
def payload_of(codec: str) -> UpdateCodec:
    """The codec of configs/compress/<codec>.yaml, or one of EXTRA."""
    if codec in EXTRA:
        return UpdateCodec(EXTRA[codec], seed=0)
    return UpdateCodec(instantiate.make(load.compose_config([f"compress={codec}"]).compress), seed=0)


@cache
def honest(codec: str, seed: int = 0) -> bytes:
    """A payload as a peer sends it."""
    draw, payload = torch.Generator().manual_seed(seed), payload_of(codec)
    header = wire.Header(ROUND.number, ROUND.fragment, 64, wire.schema_hash(SCHEMA), 7, PEER)
    offered = {name: torch.randn(shape, generator=draw) for name, shape in SCHEMA.items()}
    parts = {name: payload.encode(header.round, name, x, leads=True) for name, x in offered.items()}
    return wire.pack(header, parts)


def decoded(codec: str, blob: bytes) -> Tensors:
    """What lands: every tensor of a payload, dense. Raises InvalidMessage."""
    payload = payload_of(codec)
    message = payload.unpack(Contribution(PEER, ROUND, blob), LIKE)
    assert wire.pack(message.header, message.parts) == blob, "equal parts have other bytes"
    tensors = {name: payload.decode(message, name, like) for name, like in LIKE.items()}
    for name, x in tensors.items():
        check_fused(codec, message, name, x)
        check_agreed(codec, message, name)
    return tensors


def check_fused(codec: str, message: wire.Message, name: str, dense: torch.Tensor) -> None:
    """Kept positions have one code only, and the kernel that lands them moves the weights by what they decode to."""
    payload = payload_of(codec)
    topk = compressor_of(payload.compress, dense.shape)
    if isinstance(topk, TopK) and dense.numel():
        position_M, value_M = (x[0] for x in decode_kept(payload, topk, [message], name, dense))
        rows, slow = topk.rows_at(dense.numel(), payload.context(ROUND.number, name)), torch.zeros_like(dense)
        assert torch.equal(topk.index.encode(position_M, rows), message.parts[name]["index"]), name
        how = Landing(-1, 0.0, rows.chunk, rows.k, by_senders=False, lr=1.0, mu=0.0, nesterov=False)
        land(slow, torch.zeros_like(dense), None, None, None, position_M[None], value_M[None], None, None, None, how)
        assert torch.equal(slow, -dense), name


def check_agreed(codec: str, message: wire.Message, name: str) -> None:
    """What a leader says for the next round holds there: an honest payload decodes under it."""
    if (word := message.parts[name].get("next")) is not None:
        compress, x = payload_of(codec).compress, LIKE[name]
        context = CodecContext(ROUND.number + 1, 0, agreed=word)
        compress.decode(compress.encode(x, context), x.shape, context)


def check(codec: str, blob: bytes) -> str:
    """ "decoded" or "refused" and nothing else; the same by compiled kernels and by their definitions."""
    with suppress(wire.InvalidMessage):
        wire.read(blob)
    with Allocations() as allocations:
        tensors = outcome(codec, blob)
    assert allocations.largest <= 2 * honest_bytes(codec) + len(blob)
    for name, x in tensors.items():
        assert x.shape == SCHEMA[name] and x.dtype == torch.float32 and x.isfinite().all(), name
    with by_definition():
        defined = outcome(codec, blob)
    assert defined.keys() == tensors.keys() and all(torch.equal(defined[name], x) for name, x in tensors.items())
    return "decoded" if tensors else "refused"


def outcome(codec: str, blob: bytes) -> Tensors:
    """What lands, nothing if it is refused for a short reason."""
    try:
        return decoded(codec, blob)
    except wire.InvalidMessage as bad:
        assert len(str(bad)) <= LONGEST_REASON
        return {}


@contextmanager
def by_definition() -> Iterator[None]:
    """Without the compiled kernels that decoding meets."""
    with pytest.MonkeyPatch.context() as patch:
        for operator in (rice_decode, elias_fano_decode, two_bit_decode, land):
            patch.setattr(operator, "overload", operator.flattened(operator.definition))
        yield


class Allocations(TorchDispatchMode):
    """Follows every torch operation; `largest` is the most bytes that one of them returned."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [x.nbytes for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.largest = max([self.largest, *made])
        return out


@cache
def honest_bytes(codec: str) -> int:
    """The most that one operation asks for when an honest payload is decoded."""
    with Allocations() as allocations:
        decoded(codec, honest(codec))
    return allocations.largest
