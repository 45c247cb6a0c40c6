"""Choose one of two compressors by tensor size.

Norms and biases are small and important, so sparsifying them would save little and harm training.
"""

from __future__ import annotations

from typing import Any

from torch import Size, Tensor

from outerloop.kernels.specs import SparseCodec, sparse_codec
from outerloop.protocols import Compressor, Stateful
from outerloop.types import CodecContext, Parts, UserError


class BySize:
    """Compressor that uses `small` for tensors of fewer than `below` values, and `large` for all others.

    Args:
        below: size threshold, in values; the chunk size of `large` is a natural choice.
        small: compressor of small tensors; it should be cheap and accurate without tuning, for example bfloat16.
        large: compressor of all other tensors.
    """

    def __init__(self, *, below: int, small: Compressor, large: Compressor) -> None:
        self.below, self.small, self.large = below, small, large
        self.linear = small.linear and large.linear
        both = {"small": small, "large": large}
        self.stateful = {size: codec for size, codec in both.items() if isinstance(codec, Stateful)}

    def of(self, shape: Size) -> Compressor:
        """Return the compressor for a tensor of this shape."""
        return self.small if shape.numel() < self.below else self.large

    def sparse_codec(self, shape: Size) -> SparseCodec | None:
        """Return the kernels' description of the compressor that is used for this shape, or None if it has none."""
        return sparse_codec(self.of(shape), shape)

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x with the compressor for its shape."""
        return self.of(x.shape).encode(x, context)

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a float32 tensor of `shape`. Raises ValueError if its compressor cannot decode them."""
        return self.of(shape).decode(parts, shape, context)

    def landed(self, own: Parts, shape: Size, context: CodecContext) -> None:
        """Notify the compressor for this shape that this peer's parts have landed, if that compressor has a state."""
        if codec := self.stateful.get("small" if self.of(shape) is self.small else "large"):
            codec.landed(own, shape, context)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the stateful compressors, keyed by "small" and "large"."""
        return {size: codec.state_dict() for size, codec in self.stateful.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`."""
        for size, held in state.items():
            self.stateful[size].load_state_dict(held)


def compressor_of(compress: Compressor, shape: Size) -> Compressor:
    """Return the compressor for a tensor of this shape: the one that a `BySize` chooses, or else `compress` itself."""
    return compress.of(shape) if isinstance(compress, BySize) else compress


def refuse_warm_start(of: Compressor, *, transform: str) -> None:
    """Raise UserError if a compressor inside a transform has a warm start, which only works with untransformed values.

    A transform does not pass on what has landed, so the compressor would start from random factors in each round.
    `transform`: its name.
    """
    if any(getattr(codec, "warm_start", False) for codec in codecs(of)):
        raise UserError(f"warm_start=true has no effect inside compress={transform}: set it to false")


def codecs(compress: Compressor) -> list[Compressor]:
    """Return the compressors between which `compress` chooses by tensor size, or only `compress` if it does not."""
    if isinstance(compress, BySize):
        return [*codecs(compress.small), *codecs(compress.large)]
    return [compress]
