"""Descriptions of the arithmetic of an outer loop's parts, which allow the kernels to do the work of these parts.

Each of the four parts (compressor, feedback, aggregate, outer method) may have a method that returns a description of
its arithmetic: `sparse_codec`, `residual_spec`, `aggregate_rule`, `sgd_spec`. If all four return a description,
`kernels.select` and `kernels.land` do the work of a round for the described tensors (core/pipeline/fused.py). If one
part lacks the method or returns None, the dense pipeline calls the parts. A subclass that computes something else must
return None.

Sizes: M kept values of a tensor, P peers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Size, Tensor

from outerloop.kernels.select import Rows
from outerloop.types import CodecContext, Parts

StoredResidual = tuple[Tensor | None, Tensor | None, float]
"""A tensor's residual, the residual's scales, and the decay β. Kernels change the residual and its scales in place.
Only 8-bit residuals have scales."""


class SparseCodec(Protocol):
    """A codec that selects the same values as `kernels.select`.

    encode(x, context) = pack(position, value, rows_at(x.numel(), context), context)      position, value = select(x)

    If `signs` returns signs, x is rotated before the selection, and unpacked values are rotated back.

    chunk, k: k of every `chunk` values are kept, after any warm-up.
    """

    chunk: int
    k: int

    def rows_at(self, count: int, context: CodecContext) -> Rows:
        """Return how a tensor of `count` values is divided into chunks, and how many are kept, in this round."""
        ...

    def signs(self, count: int, context: CodecContext) -> Tensor | None:
        """Return the sign bits of the rotation before the selection (kernels/rotation.py), or None for no rotation."""
        ...

    def pack(self, position_M: Tensor, value_M: Tensor, rows: Rows, context: CodecContext) -> Parts:
        """Encode kept positions (M,) int32 and values (M,) float32, ordered by chunk."""
        ...

    def unpack(self, parts_P: Sequence[Parts], rows: Rows, context: CodecContext) -> tuple[Tensor, Tensor]:
        """Decode the kept positions and values of P peers, (P, M) each. Raises ValueError or KeyError if invalid."""
        ...


@dataclass(frozen=True)
class ResidualSpec:
    """A feedback that computes x = Δ + β e and e ← x − x̂.

    at_launch: parameter name -> the residual to read.
    at_landing: (parameter name, slow weights) -> the residual to write, allocated if it did not exist.
    block: number of consecutive values that share a scale, or 1 if there are no scales.
    unsent_share: parameter name -> share of x − x̂ that stays in the fast weights at this landing. Each call counts as a
        landing of the parameter. None if inner steps begin from the slow weights.
    """

    at_launch: Callable[[str], StoredResidual]
    at_landing: Callable[[str, Tensor], StoredResidual]
    block: int = 1
    unsent_share: Callable[[str], float] | None = None


@dataclass(frozen=True)
class AggregateRule:
    """An aggregate that divides a sum by a number of peers.

    by_senders: whether to divide by the number of peers whose value for the coordinate is not 0, instead of by the
        number of all peers.
    factors: norms of P messages -> the factor of each message, applied before the sum; None if all factors are 1.
    """

    by_senders: bool
    factors: Callable[[Sequence[float]], list[float]] | None = None


@dataclass(frozen=True)
class SGDStep:
    """The settings of one update of plain SGD."""

    lr: float
    momentum: float
    nesterov: bool


@dataclass(frozen=True)
class SGDSpec:
    """A method that applies the aggregate of pseudo-gradients to the slow weights with plain SGD.

    step: name of the first tensor of a fragment -> settings of the fragment's next update. Each call counts as an
        update.
    momentum_of: slow weights of one parameter -> their momentum, zeros before the first update.
    """

    step: Callable[[str], SGDStep]
    momentum_of: Callable[[Tensor], Tensor]


def sparse_codec(compress: object, shape: Size) -> SparseCodec | None:
    """Return the compressor's description of its codec for tensors of this shape, or None if it provides none."""
    return described(compress, "sparse_codec", shape)


def residual_spec(feedback: object) -> ResidualSpec | None:
    """Return the feedback's description of its arithmetic, or None if it provides none."""
    return described(feedback, "residual_spec")


def aggregate_rule(aggregate: object) -> AggregateRule | None:
    """Return the aggregate's description of its arithmetic, or None if it provides none."""
    return described(aggregate, "aggregate_rule")


def sgd_spec(method: object) -> SGDSpec | None:
    """Return the outer method's description of its arithmetic, or None if it provides none."""
    return described(method, "sgd_spec")


def described(part: object, name: str, *args: object) -> Any:
    """Call a part's method `name` and return its result, or None if the part does not have this method."""
    describe = getattr(part, name, None)  # isinstance with a protocol would take 5 µs per tensor
    return describe(*args) if describe else None
