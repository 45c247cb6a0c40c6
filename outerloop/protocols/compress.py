"""The protocols of a compressor: the one that every compressor implements, and four optional ones."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Size, Tensor

from outerloop.types import CodecContext, Parts, RoundCost


class Compressor(Protocol):
    """AXIS compress: encodes one tensor for the wire and decodes it again.

    Parts are tensors of dtype uint8, float32, bfloat16, float16 or float64. Send integers of another dtype as bytes:
    `x.view(torch.uint8)` in `encode`, and `.view(torch.int32)` in `decode`.

    Optional attribute: `keeps_k_per_chunk`, True if the settings `k` and `chunk` state how many values are sent.
    """

    linear: bool
    """True if the parts of two tensors can be added: decoding the sum gives the sum of the two decoded tensors.

    A part named "next" is not added (see CodecContext).
    """

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (any shape, float32) as parts. Leaves x unchanged. Equal x and equal context give equal parts.

        A compressor with state changes its state in other methods (`Stateful`, `CostAware`).
        """
        ...

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Return the float32 tensor of `shape` that `parts` encode.

        Raises ValueError if `parts` do not fit `shape` and `context`, or contain a part that `encode` never returns.
        """
        ...


@runtime_checkable
class Transforming(Protocol):
    """A compressor whose parts are coefficients of an orthonormal transform, which is the same on all peers.

    Contributions are aggregated as coefficients, unless the aggregate `combines_values`.

    decode(parts, shape, context) = inverse(coefficients(parts, shape, context), context)

    of: the compressor of the coefficients.
    """

    of: Compressor

    def coefficients(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Return the coefficients: a float32 tensor of `shape` that is 0 where no coefficient was sent.

        Raises ValueError in the same cases as `decode`.
        """
        ...

    def inverse(self, coefficients: Tensor, context: CodecContext) -> Tensor:
        """Transform finite coefficients back to values of the same shape, float32."""
        ...


@runtime_checkable
class Announcing(Protocol):
    """A compressor with which peers take turns to choose a tensor that all peers use next round (see CodecContext)."""

    def check_agreed(self, agreed: Tensor, shape: Size) -> None:
        """Check that `agreed` is valid for a tensor of this shape. Raises ValueError if it is not."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A compressor that stores information about the parts that this peer has sent, for its next `encode`.

    `decode` does not use this state. So the state may differ between peers, and a peer that joins late starts without
    it.
    """

    def landed(self, own: Parts, shape: Size, context: CodecContext) -> None:
        """Store this peer's parts of a tensor. Called when a round that includes this peer's message lands."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; before the first landing the state is empty."""
        ...


@runtime_checkable
class CostAware(Protocol):
    """A compressor that adapts its setting to what rounds cost this peer, so peers may have different settings.

    The parts themselves contain the information that is needed to decode them.
    """

    def observe(self, cost: RoundCost) -> str:
        """Choose the setting for the next round, given the cost of the last one.

        Return a line that states the change and its reason, or "" if nothing changed.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; an empty state, of a sharded checkpoint, changes nothing."""
        ...
