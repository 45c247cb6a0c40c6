"""Descriptions of parts of the outer loop whose arithmetic the kernels can do in their place.

Compressor, feedback, aggregate and method may each have a method with the name and the arguments of one of the last
four functions in this file, which returns a description. If all four parts return one, `kernels.select` and
`kernels.land` run a round of the described tensors (core/pipeline/fused.py). If one lacks the method or returns None,
the parts are called themselves, in the dense pipeline. A subclass that computes something else must return None.

M kept values of a tensor, P peers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Size, Tensor

from outerloop.kernels.select import Rows
from outerloop.types import CodecContext, Parts, Tensors

StoredResidual = tuple[Tensor | None, Tensor | None, float]
"""The residual of one tensor, which kernels read and write in place; its scales if it has 8 bits; its decay β."""


class SparseCodec(Protocol):
    """A codec whose selection is that of `kernels.select`.

    encode(x, context) = pack(position, value, rows_at(x.numel(), context), context)      position, value = select(x)

    `k`: number kept of each `chunk` values after any warm-up.
    """

    chunk: int
    k: int

    def rows_at(self, count: int, context: CodecContext) -> Rows:
        """Return how a tensor of `count` values is cut into chunks in this round."""
        ...

    def pack(self, position_M: Tensor, value_M: Tensor, rows: Rows, context: CodecContext) -> Parts:
        """Encode kept positions (M,) int32 and values (M,) float32, ordered by chunk."""
        ...

    def unpack(self, parts_P: Sequence[Parts], rows: Rows, context: CodecContext) -> tuple[Tensor, Tensor]:
        """Return positions and values (P, M) of P peers. Raises ValueError or KeyError on invalid parts."""
        ...


@dataclass(frozen=True)
class ResidualSpec:
    """A feedback with x = Δ + β e and e ← x − x̂.

    at_launch: parameter name -> the residual to read.
    at_landing: (parameter name, slow weights) -> the residual to write, allocated if there was none.
    block: number of consecutive values that share a scale, 1 without scales.
    begin_memory: parameter name -> the memory that `at_landing` reuses for what `begin` subtracts from the slow
        weights; None if inner steps begin from the slow weights.
    """

    at_launch: Callable[[str], StoredResidual]
    at_landing: Callable[[str, Tensor], StoredResidual]
    block: int = 1
    begin_memory: Tensors | None = None


@dataclass(frozen=True)
class AggregateRule:
    """An aggregate that is a sum divided by the number of peers, or of those whose value is not 0.

    factors: norms of P messages -> the factor of each message, applied before the sum; None if all are 1.
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
    """A method that applies the aggregate of pseudo-gradients to the slow weights by plain SGD.

    step: name of the first tensor of a fragment -> the settings of its next update, which is counted.
    momentum_of: slow weights of one parameter -> their momentum, zeros before the first update.
    """

    step: Callable[[str], SGDStep]
    momentum_of: Callable[[Tensor], Tensor]


def sparse_codec(compress: object, shape: Size) -> SparseCodec | None:
    """Return the description of a compressor's codec for tensors of this shape, or None."""
    return described(compress, "sparse_codec", shape)


def residual_spec(feedback: object) -> ResidualSpec | None:
    """Return the description of a feedback, or None."""
    return described(feedback, "residual_spec")


def aggregate_rule(aggregate: object) -> AggregateRule | None:
    """Return the description of an aggregate, or None."""
    return described(aggregate, "aggregate_rule")


def sgd_spec(method: object) -> SGDSpec | None:
    """Return the description of an outer method, or None."""
    return described(method, "sgd_spec")


def described(part: object, name: str, *args: object) -> Any:
    """Return what this method of a part returns; None if the part has no such method."""
    describe = getattr(part, name, None)  # an isinstance of a protocol takes 5 µs, and this is asked for each tensor
    return describe(*args) if describe else None
