"""Two compressors, chosen by the size of the tensor: norms and biases are too few and too dear to be made sparse."""

from __future__ import annotations

from torch import Size, Tensor

from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts


class BySize:
    """Tensors of fewer than `below` values go through `small`, all others through `large`.

    Args:
        below: number of values. One chunk of `large` is a natural border.
        small: compressor of the small ones, cheap and exact enough to need no thought (bfloat16).
        large: compressor of the rest.
    """

    def __init__(self, *, below: int, small: Compressor, large: Compressor) -> None:
        self.below, self.small, self.large = below, small, large
        self.linear = small.linear and large.linear

    def of(self, shape: Size) -> Compressor:
        """The compressor that a tensor of this shape meets."""
        return self.small if shape.numel() < self.below else self.large

    def encode(self, x: Tensor, moment: CodecContext) -> Parts:
        """The parts of the chosen compressor."""
        return self.of(x.shape).encode(x, moment)

    def decode(self, parts: Parts, shape: Size, moment: CodecContext) -> Tensor:
        """Parts -> float32 of `shape`. Raises ValueError as the chosen compressor does."""
        return self.of(shape).decode(parts, shape, moment)


def codec_of(compress: Compressor, shape: Size) -> Compressor:
    """Return the compressor that a tensor of this shape meets in the end."""
    return compress.of(shape) if isinstance(compress, BySize) else compress
