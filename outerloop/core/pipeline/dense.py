"""Run a round with any combination of parts, passing dense tensors between the steps of the computation.

x = feedback(outgoing(φ, θ))  →  compress;      ḡ = aggregate of all payloads;  e ← x − x̂;  φ ← method(φ, ḡ)

Norms, agreement and aggregate are all computed from the same kind of tensor: from coefficients if the compressor
applies an orthonormal transform and the aggregate accepts coefficients, otherwise from values. core/loop.py defines the
symbols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outerloop import wire
from outerloop.aggregate.exact_norms import sum_of_squares
from outerloop.aggregate.median_clip import scaled
from outerloop.aggregate.norm_screen import LONGEST
from outerloop.core.codec import UpdateCodec
from outerloop.kernels.finite import all_finite
from outerloop.protocols import Aggregate, Feedback, OuterMethod
from outerloop.types import Parts, Tensors


@dataclass(frozen=True)
class LocalUpdate:
    """One pipeline's share of a message, and the tensors that the landing needs.

    parts: the encoded tensors.
    update: the compressor's input, x = Δ + feedback, where Δ is the pseudo-gradient.
    squares: Σ Δ².
    fast_at_launch: copies of the fast weights.
    """

    parts: dict[str, Parts]
    update: Tensors
    squares: float
    fast_at_launch: Tensors = field(default_factory=dict)


class DensePipeline:
    """The reference implementation of a round, which supports every tensor.

    slow: this peer's slow weights. If the method sends weights, norms and factors apply to the difference between a
        contribution and `slow`, not to the contribution itself (aggregate/distance_screen.py).
    """

    def __init__(
        self,
        *,
        method: OuterMethod,
        feedback: Feedback,
        aggregate: Aggregate,
        codec: UpdateCodec,
        peer: str,
        slow: Tensors | None = None,
    ) -> None:
        self.method, self.feedback, self.aggregate = method, feedback, aggregate
        self.codec, self.peer = codec, peer
        self.combines_values = getattr(aggregate, "combines_values", False)
        self.centre = (slow or {}) if method.sends != "differences" else {}

    def launch(self, number: int, slow: Tensors, read: Tensors, *, leads: bool) -> LocalUpdate:
        """Compute this peer's update, add feedback, and compress it. Changes no state that outlives the call."""
        delta = self.method.outgoing(slow, read)
        update = {name: self.feedback.add(name, finite(name, x, slow[name])) for name, x in delta.items()}
        parts = {name: self.codec.encode(number, name, x, leads=leads) for name, x in update.items()}
        return LocalUpdate(parts, update, squares(delta))

    def aggregate_messages(
        self,
        messages: list[wire.Message],
        like: Tensors,
        *,
        factors: list[float],
        samples: list[int],
        norms: list[float],
    ) -> Tensors:
        """Decode, scale and aggregate all messages. Return the aggregate of each tensor. Changes nothing.

        Raises InvalidMessage if a message cannot be decoded.

        messages: sorted by peer name.
        factors: factor by which to scale each message.
        samples: number of samples of each message.
        norms: norm of each whole message after scaling, if the aggregate needs norms.
        """

        def aggregated(name: str, x: Tensor) -> Tensor:
            sent = self.scaled(name, self.decoded(messages, name, x), factors)
            mean = self.aggregate(sent, samples, norms)
            return mean if self.combines_values else self.codec.values(messages[0].header.round, name, mean)

        return {name: aggregated(name, x) for name, x in like.items()}

    def decoded(self, messages: Sequence[wire.Message], name: str, like: Tensor) -> list[Tensor]:
        """Decode one tensor of each message, to coefficients or values: the form that is aggregated.

        Raises InvalidMessage if a message cannot be decoded.
        """
        return [self.decode(message, name, like) for message in messages]

    def decode(self, message: wire.Message, name: str, like: Tensor) -> Tensor:
        """Decode one tensor of a message, to coefficients or values: the form that is aggregated.

        Raises InvalidMessage if the message cannot be decoded.
        """
        read = self.codec.decode if self.combines_values else self.codec.coefficients
        return read(message, name, like)

    def land(
        self, mean: Tensors, messages: list[wire.Message], update: Tensors, slow: Tensors, *, included: bool
    ) -> float:
        """Update the slow weights and, if the round `included` this peer's message, the residual. Return Σ mean²."""
        own = {}
        if included:
            [message] = [m for m in messages if m.header.peer == self.peer]
            own = {name: self.codec.decode(message, name, update[name]) for name in mean}
            for name, sent in own.items():
                self.feedback.keep(name, update[name], sent)
                self.codec.landed_own(message, name, update[name])
        if mean:
            self.method.update(slow, mean, own)
        return squares(mean)

    def squares_of(self, messages: Sequence[wire.Message], like: Tensors) -> dict[str, list[float]]:
        """Return a mapping from tensor name to Σ x² of each message, over what is combined: coefficients or values.

        If the method sends weights, x is their difference from this peer's slow weights. Raises InvalidMessage if a
        message cannot be decoded.
        """
        return {
            name: [self.sum_of_squares(name, self.decode(message, name, x), of=x.numel()) for message in messages]
            for name, x in like.items()
        }

    def scaled(self, name: str, sent: Sequence[Tensor], factors: Sequence[float]) -> list[Tensor]:
        """Multiply each contribution to one tensor by its factor. A factor of 1 leaves it unchanged.

        If the method sends weights, multiply their difference from this peer's slow weights instead.
        """
        if name not in self.centre:
            return scaled(sent, factors)
        centre = self.centre[name]
        return [
            torch.lerp(centre.expand_as(x).to(x.dtype), x, factor) if factor < 1 else x
            for x, factor in zip(sent, factors, strict=True)
        ]

    def sum_of_squares(self, name: str, sent: Tensor, *, of: int) -> float:
        """Return Σ x² of one contribution to one tensor, or infinity if float64 overflows.

        If the method sends weights, x is their difference from this peer's slow weights. of: number of values in the
        tensor.
        """
        if name not in self.centre:
            return sum_of_squares(sent, of=of)
        return sum_of_squares(sent.double() - self.centre[name].double(), of=of)


def finite(name: str, x: Tensor, slow: Tensor) -> Tensor:
    """Return x, which was computed from these slow weights, after checking that it is finite.

    Raises FloatingPointError, naming the parameter, if x is not finite.
    """
    if all_finite(x):
        return x
    if not float(slow.abs().max()) <= LONGEST:
        raise FloatingPointError(
            f"{name}: the slow weights are far too large because an outer step was too large: set clip=median, or lower"
            " the learning rate of the method"
        )
    raise FloatingPointError(f"{name}: pseudo-gradient is not finite, so training has diverged: lower inner.lr")


def squares(tensors: Mapping[str, Tensor]) -> float:
    """Return Σ x² over all values of all tensors."""
    return sum(float(x.norm()) ** 2 for x in tensors.values())
