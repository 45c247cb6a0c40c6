"""Run a whole round in two kernels without dense intermediates: `kernels.select` at launch, `kernels.land` at landing.

Supports SparseLoCo and its variants:

    compress     top-k of the pseudo-gradient, after a rotation or not
    feedback     a residual that is added to the pseudo-gradient, or unsent values that stay in the fast weights
    aggregate    the mean over peers or senders, with or without clipping to the median norm
    method       SGD on the slow weights

A part that is one of these provides a description for the kernels (kernels/specs.py). If any part provides none, the
dense pipeline is used. The choice depends on settings, shapes and memory order, which peers compare before they
begin (Island.layouts), never on the machine. So all peers round in the same way.

For the residual, the landing kernel computes Δ = φ − θ again, with the θ of the launch. If inner steps take place
between launch and landing, or if the fast weights do not become equal to the slow weights, the kernel uses a copy of
that θ (`on_copy`), and the model is written afterwards.

P is the number of peers, M the number of kept values of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from outerloop import wire
from outerloop.aggregate.exact_norms import sum_of_squares
from outerloop.core.codec import UpdateCodec, blaming, on
from outerloop.core.pipeline.dense import DensePipeline, LocalUpdate, finite
from outerloop.kernels.land import Landing, land
from outerloop.kernels.select import Selection, absolute, select
from outerloop.kernels.specs import (
    AggregateRule,
    ResidualSpec,
    SGDSpec,
    SparseCodec,
    aggregate_rule,
    residual_spec,
    sgd_spec,
    sparse_codec,
)
from outerloop.kernels.threads import parallel_map
from outerloop.types import Parts, Tensors

T = TypeVar("T")


@dataclass(frozen=True)
class SparseUpdates:
    """Sparse updates of one tensor from P peers: positions and values of M kept entries, (P, M), and factors, (P, 1).

    `factor` is None if all factors are 1.
    """

    position: Tensor
    value: Tensor
    factor: Tensor | None = None

    def to(self, device: torch.device) -> SparseUpdates:
        """Return these updates on a device."""
        factor = None if self.factor is None else self.factor.to(device)
        return SparseUpdates(self.position.to(device), self.value.to(device), factor)


class FusedPipeline:
    """Takes tensors whose codec selects the same values as the kernels, and whose weights are float32 or bfloat16.

    Args:
        dense: the pipeline of all other tensors, with the same axes.
        on_copy: whether `land` receives copies of the fast weights at the launch, not the current fast weights.
        slow_moves: whether slow weights change between launch and landing, which the landing kernel does not support.

    The attribute `fits` is False if the kernels do not support the axes; then this pipeline takes no tensor.
    """

    def __init__(self, dense: DensePipeline, *, on_copy: bool, slow_moves: bool = False) -> None:
        self.codec, self.peer, self.on_copy = dense.codec, dense.peer, on_copy
        specs = sgd_spec(dense.method), residual_spec(dense.feedback), aggregate_rule(dense.aggregate)
        self.fits = None not in specs and not slow_moves
        self.sgd, self.residual, self.rule = cast(tuple[SGDSpec, ResidualSpec, AggregateRule], specs)  # used if `fits`

    def takes(self, slow: Tensor, fast: torch.dtype) -> bool:
        """Return whether this pipeline takes a tensor whose fast weights have this dtype.

        It takes no empty tensors, and only tensors whose chunks consist of whole blocks of the residual.
        """
        codec = sparse_codec(self.codec.compress, slow.shape) if self.fits else None
        return (
            codec is not None
            and codec.chunk % self.residual.block == 0
            and slow.dtype == torch.float32
            and fast in (torch.float32, torch.bfloat16)
            and slow.numel() > 0
        )

    @property
    def begin_memory(self) -> Tensors | None:
        """The tensors that are subtracted from slow weights before inner steps begin; None if nothing is subtracted."""
        return self.residual.begin_memory if self.fits else None

    def launch(self, number: int, slow: Tensors, fast: Tensors) -> LocalUpdate:
        """Compute difference, feedback and selection in one pass, then encode the kept values.

        Changes no state that outlives the call.
        """

        def encode(name: str) -> tuple[Parts, float]:
            x = slow[name]
            sparse, context = self.codec_of(x), self.codec.context(number, name)
            rows = sparse.rows_at(x.numel(), context)
            held, scale, beta = self.residual.at_launch(name)
            signs, how = on_device(sparse.signs(x.numel(), context), x.device), Selection(beta, rows.chunk, rows.k)
            position_M, value_M, squares = select(x, fast[name], held, scale, signs, how)
            return sparse.pack(position_M, finite(name, value_M, x), rows, context), float(squares)

        parts = of_each(encode, slow)
        squares = sum(squares for _, squares in parts.values())
        return LocalUpdate({name: part for name, (part, _) in parts.items()}, dict(slow), squares)

    def combine(self, messages: list[wire.Message], like: Tensors) -> dict[str, SparseUpdates]:
        """Return positions and values of all peers in name order. Raises InvalidMessage. Changes nothing."""

        def decode(name: str) -> SparseUpdates:
            return SparseUpdates(*decode_kept(self.codec, self.codec_of(like[name]), messages, name, like[name]))

        return of_each(decode, like)

    def sent(self, number: int, kept: dict[str, SparseUpdates], like: Tensors) -> Iterator[list[Tensor]]:
        """For each tensor, yield the contributions of the P peers, (U,) float32 each.

        U: the number of coordinates that at least one peer chose.
        """
        for name, k in kept.items():
            rows = self.codec_of(like[name]).rows_at(like[name].numel(), self.codec.context(number, name))
            chosen_PM = torch.stack([absolute(position_M, rows) for position_M in k.position])
            chosen_U, place_PM = chosen_PM.unique(return_inverse=True)
            yield list(k.value.new_zeros(len(k.value), len(chosen_U)).scatter_(1, place_PM, k.value))

    def squares_of(self, row: int, kept: dict[str, SparseUpdates], like: Tensors) -> dict[str, float]:
        """Return Σ x² of each tensor of one message. `row`: index of its sender in peer-name order."""
        return {name: sum_of_squares(k.value[row], of=like[name].numel()) for name, k in kept.items()}

    def scaled(
        self, kept: dict[str, SparseUpdates], factors: list[float], norms: list[float]
    ) -> dict[str, SparseUpdates]:
        """Return the updates scaled by each message's factor and, if the aggregate clips, by the aggregate's factor.

        norms: norm of each message after scaling, if the aggregate needs norms.
        """
        if kept and self.rule.factors:
            factors = [factor * more for factor, more in zip(factors, self.rule.factors(norms), strict=True)]
        if all(factor == 1 for factor in factors):
            return kept
        return {
            name: replace(k, factor=torch.tensor(factors, dtype=k.value.dtype, device=k.value.device)[:, None])
            for name, k in kept.items()
        }

    def land(
        self,
        combined: dict[str, SparseUpdates],
        messages: list[wire.Message],
        slow: Tensors,
        fast: Tensors,
        *,
        included: bool,
    ) -> float:
        """Update momentum, slow and fast weights and, if `included`, the residual in one pass. Return Σ ḡ².

        fast: the fast weights; if `included`, those at the launch.
        included: whether the round includes this peer's message.
        """
        if not combined:
            return 0.0
        senders, number = [m.header.peer for m in messages], messages[0].header.round
        own = senders.index(self.peer) if included else -1
        step = self.sgd.step(next(iter(combined)))
        residual, like = self.residual, {name: slow[name] for name in combined}
        # Allocated here, not by the threads: their order varies, and new tensors must be stored in the order of names.
        stored = {
            name: residual.at_landing(name, x) if included else residual.at_launch(name) for name, x in like.items()
        }
        momentum = {name: self.sgd.momentum_of(x) if step.momentum else None for name, x in like.items()}

        def land_tensor(name: str) -> float:
            x, kept, (held, scale, beta) = slow[name], combined[name], stored[name]
            context, sparse = self.codec.context(number, name), self.codec_of(x)
            rows, signs = sparse.rows_at(x.numel(), context), on_device(sparse.signs(x.numel(), context), x.device)
            how = Landing(own, beta, rows.chunk, rows.k, self.rule.by_senders, step.lr, step.momentum, step.nesterov)
            value = kept.value if kept.factor is None else kept.value * kept.factor
            sent = None if kept.factor is None or own < 0 else kept.value[own]
            return float(land(x, fast[name], held, scale, momentum[name], kept.position, value, sent, signs, how))

        return sum(of_each(land_tensor, like).values())

    def codec_of(self, x: Tensor) -> SparseCodec:
        """Return the codec of a tensor that this pipeline takes."""
        codec = sparse_codec(self.codec.compress, x.shape)
        assert codec is not None
        return codec


def on_device(x: Tensor | None, device: torch.device) -> Tensor | None:
    """Return an optional tensor on a device."""
    return None if x is None else x.to(device)


def of_each(work: Callable[[str], T], like: Tensors) -> dict[str, T]:
    """Return name -> work(name) for these tensors. On a CPU, threads work on several tensors at a time."""
    names = list(like)
    if all(x.is_cpu for x in like.values()):
        return dict(zip(names, parallel_map(work, names, [x.numel() for x in like.values()]), strict=True))
    return {name: work(name) for name in names}


def decode_kept(
    codec: UpdateCodec, sparse: SparseCodec, messages: list[wire.Message], name: str, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Return positions and values of a tensor, (P, M) each.

    Raises InvalidMessage, naming the peer and the tensor, if a payload cannot be decoded.
    """
    context = codec.context(messages[0].header.round, name)
    rows = sparse.rows_at(like.numel(), context)
    try:
        return sparse.unpack([on(like.device, message.parts[name]) for message in messages], rows, context)
    except (ValueError, KeyError):
        for message in messages:  # one of them is invalid: decode each alone to find its sender
            with blaming(message, name):
                sparse.unpack([on(like.device, message.parts[name])], rows, context)
        raise
