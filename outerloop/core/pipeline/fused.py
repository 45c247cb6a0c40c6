"""Run a whole round in two kernels without dense intermediates: `kernels.select` at launch, `kernels.land` at landing.

Supports SparseLoCo and its variants:

    compress     top-k of the pseudo-gradient, with or without a rotation before it
    feedback     a residual that is added to the pseudo-gradient, or unsent values that stay in the fast weights
    aggregate    the mean over peers or senders, with or without clipping to the median norm
    method       SGD on the slow weights

Each of these parts provides a description for the kernels (kernels/specs.py). If any part of a run provides none, the
dense pipeline is used. The choice depends on settings, shapes and memory order, which peers compare before they
start (Island.layouts), never on the machine. So all peers round in the same way.

For the residual, the landing kernel recomputes Δ = φ − θ with the θ of the launch. If inner steps run between launch
and landing, or if fast weights are merged with the model's, the kernel uses a copy of that θ (`on_copy`). It computes
there the fast weights that are written to the model afterwards, or, if they are to keep the progress since the launch,
changes those of the model.

P is the number of peers, M the number of kept values of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from outerloop import wire
from outerloop.aggregate.exact_norms import sums_of_squares
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
    """Sparse updates of one tensor from P peers, with M kept entries each.

    position, value: positions and values of the kept entries, (P, M).
    factor: the factor of each peer's update, (P, 1), or None if all factors are 1.
    """

    position: Tensor
    value: Tensor
    factor: Tensor | None = None

    def to(self, device: torch.device) -> SparseUpdates:
        """Return a copy with all tensors on this device."""
        factor = None if self.factor is None else self.factor.to(device)
        return SparseUpdates(self.position.to(device), self.value.to(device), factor)


class FusedPipeline:
    """Runs rounds in fused kernels, for the tensors that `takes` accepts.

    Args:
        dense: the pipeline for all other tensors, with the same parts.
        on_copy: whether `land` receives copies of the fast weights at the launch, not the current fast weights.
        slow_moves: whether slow weights change between launch and landing, which the landing kernel does not support.

    The attribute `fits` is False if the kernels do not support the parts; this pipeline then accepts no tensor.
    """

    def __init__(self, dense: DensePipeline, *, on_copy: bool, slow_moves: bool = False) -> None:
        self.codec, self.peer, self.on_copy = dense.codec, dense.peer, on_copy
        specs = sgd_spec(dense.method), residual_spec(dense.feedback), aggregate_rule(dense.aggregate)
        self.fits = None not in specs and not slow_moves
        self.sgd, self.residual, self.rule = cast(tuple[SGDSpec, ResidualSpec, AggregateRule], specs)  # used if `fits`

    def takes(self, slow: Tensor, fast: torch.dtype) -> bool:
        """Return whether this pipeline supports a tensor, given its slow weights and the dtype of its fast weights.

        The tensor must not be empty, and its chunks must consist of whole blocks (values that share a residual scale).
        """
        sparse = sparse_codec(self.codec.compress, slow.shape) if self.fits else None
        return (
            sparse is not None
            and sparse.chunk % self.residual.block == 0
            and slow.dtype == torch.float32
            and fast in (torch.float32, torch.bfloat16)
            and slow.numel() > 0
        )

    @property
    def keeps_unsent(self) -> bool:
        """True if unsent values stay in the fast weights, which then differ from the slow weights after a landing."""
        return self.fits and self.residual.unsent_share is not None

    def launch(self, number: int, slow: Tensors, fast: Tensors) -> LocalUpdate:
        """Compute the pseudo-gradient, add feedback and select values in one pass, then encode the kept values.

        Changes no state that outlives the call.
        """

        def encode(name: str) -> tuple[Parts, float]:
            x = slow[name]
            sparse, context = self.sparse_of(x), self.codec.context(number, name)
            rows = sparse.rows_at(x.numel(), context)
            held, scale, beta = self.residual.at_launch(name)
            signs, how = on_device(sparse.signs(x.numel(), context), x.device), Selection(beta, rows.chunk, rows.k)
            position_M, value_M, squares = select(x, fast[name], held, scale, signs, how)
            return sparse.pack(position_M, finite(name, value_M, x), rows, context), float(squares)

        parts = of_each(encode, slow)
        squares = sum(squares for _, squares in parts.values())
        return LocalUpdate({name: part for name, (part, _) in parts.items()}, dict(slow), squares)

    def decode(self, messages: list[wire.Message], like: Tensors) -> dict[str, SparseUpdates]:
        """Decode each tensor's kept positions and values from all messages, which are sorted by peer name.

        Raises InvalidMessage if a message cannot be decoded. Changes nothing.
        """

        def decode_tensor(name: str) -> SparseUpdates:
            return SparseUpdates(*decode_kept(self.codec, self.sparse_of(like[name]), messages, name, like[name]))

        return of_each(decode_tensor, like)

    def sent(self, number: int, kept: dict[str, SparseUpdates], like: Tensors) -> Iterator[list[Tensor]]:
        """For each tensor, yield all peers' contributions, (U,) float32 each.

        U is the number of coordinates that at least one peer sent.
        """
        for name, k in kept.items():
            rows = self.sparse_of(like[name]).rows_at(like[name].numel(), self.codec.context(number, name))
            chosen_PM = torch.stack([absolute(position_M, rows) for position_M in k.position])
            chosen_U, place_PM = chosen_PM.unique(return_inverse=True)
            yield list(k.value.new_zeros(len(k.value), len(chosen_U)).scatter_(1, place_PM, k.value))

    def squares_of(self, kept: dict[str, SparseUpdates], like: Tensors) -> dict[str, list[float]]:
        """Return a mapping from tensor name to Σ x² of each message."""
        return {name: sums_of_squares(k.value, of=like[name].numel()) for name, k in kept.items()}

    def scaled(
        self, kept: dict[str, SparseUpdates], factors: list[float], norms: list[float]
    ) -> dict[str, SparseUpdates]:
        """Scale each message's update by its factor and, if the aggregate clips, by the aggregate's factor.

        norms: norm of each message after scaling by `factors`, if the aggregate needs norms.
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
        updates: dict[str, SparseUpdates],
        messages: list[wire.Message],
        slow: Tensors,
        fast: Tensors,
        current: Tensors,
        *,
        included: bool,
    ) -> float:
        """Update momentum, slow and fast weights and, if `included`, the residual in one pass.

        Returns Σ ḡ², where ḡ is the aggregate.

        fast: the fast weights; if `included`, those at the launch. They become those from which inner steps continue,
            rounded to their dtype.
        current: the current fast weights, if they are to change instead, and to keep their progress since the launch;
            else empty.
        included: whether the round includes this peer's message.
        """
        if not updates:
            return 0.0
        senders, number = [m.header.peer for m in messages], messages[0].header.round
        own = senders.index(self.peer) if included else -1
        step = self.sgd.step(next(iter(updates)))
        residual, like = self.residual, {name: slow[name] for name in updates}
        # Allocate here, not in the threads, whose order varies: new tensors must be stored in the order of names.
        stored = {
            name: residual.at_landing(name, x) if included else residual.at_launch(name) for name, x in like.items()
        }
        momentum = {name: self.sgd.momentum_of(x) if step.momentum else None for name, x in like.items()}
        share_of = residual.unsent_share if included else None
        share = {name: share_of(name) if share_of else 0.0 for name in like}

        def land_tensor(name: str) -> float:
            x, kept, (held, scale, beta) = slow[name], updates[name], stored[name]
            context, sparse = self.codec.context(number, name), self.sparse_of(x)
            rows, signs = sparse.rows_at(x.numel(), context), on_device(sparse.signs(x.numel(), context), x.device)
            sgd = step.lr, step.momentum, step.nesterov
            how = Landing(own, beta, rows.chunk, rows.k, self.rule.by_senders, *sgd, share[name])
            value = kept.value if kept.factor is None else kept.value * kept.factor
            sent = None if kept.factor is None or own < 0 else kept.value[own]
            state = x, fast[name], held, scale, momentum[name]
            return float(land(*state, kept.position, value, sent, signs, current.get(name), how))

        return sum(of_each(land_tensor, like).values())

    def sparse_of(self, x: Tensor) -> SparseCodec:
        """Return the codec for tensor x, which this pipeline must support."""
        sparse = sparse_codec(self.codec.compress, x.shape)
        assert sparse is not None
        return sparse


def on_device(x: Tensor | None, device: torch.device) -> Tensor | None:
    """Return x on this device, or None if x is None."""
    return None if x is None else x.to(device)


def of_each(work: Callable[[str], T], like: Tensors) -> dict[str, T]:
    """Return a mapping from name to work(name) for each tensor in `like`.

    On a CPU, threads process several tensors at a time.
    """
    names = list(like)
    if all(x.is_cpu for x in like.values()):
        return dict(zip(names, parallel_map(work, names, [x.numel() for x in like.values()]), strict=True))
    return {name: work(name) for name in names}


def decode_kept(
    codec: UpdateCodec, sparse: SparseCodec, messages: list[wire.Message], name: str, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Decode the kept positions and values of a tensor from P messages, (P, M) each, with M kept values per message.

    Raises InvalidMessage, naming the peer and the tensor, if a payload cannot be decoded.
    """
    context = codec.context(messages[0].header.round, name)
    rows = sparse.rows_at(like.numel(), context)
    try:
        return sparse.unpack([on(like.device, message.parts[name]) for message in messages], rows, context)
    except (ValueError, KeyError):
        for message in messages:  # one message is invalid: decode each one alone to find its sender
            with blaming(message, name):
                sparse.unpack([on(like.device, message.parts[name])], rows, context)
        raise
