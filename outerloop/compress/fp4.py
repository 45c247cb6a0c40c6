"""A float of four bits, E3M0: a sign and three exponent bits (Streaming DiLoCo, arXiv 2501.18512).

    x̂ = the nearest of 0 and ± scale * 2^(e - 7), e = 1 .. 7;  scale = max |x| of the group

Exponent 0 is zero, as in the IEEE formats. Nearest by distance, not by exponent: 1.4 goes to 1 and 1.6 to 2, so no
value ends up further away than if it had not been sent. The levels span a factor of 64: better than int4 where
magnitudes inside a group differ by orders, worse where they do not (gaussian, chunk 256: relative error .19 against
.13; Laplace .19 against .18). There it is used without feedback.

N values, G groups.
"""

from __future__ import annotations

from torch import Size, Tensor

from outerloop.compress import group_scaled
from outerloop.compress.group_scaled import checked_chunk, group_length
from outerloop.kernels.reference import fp4_rows, fp4_rows_decode
from outerloop.types import CodecContext, Parts


class Fp4:
    """4 bits a value and one bfloat16 scale a group.

    Args:
        chunk: values in a group; None inside a sparse codec: a group is what one chunk kept.

    Raises:
        UserError: if `chunk` is not positive.
    """

    linear = False

    def __init__(self, *, chunk: int | None) -> None:
        self.chunk = checked_chunk("fp4", chunk)

    def encode(self, x: Tensor, moment: CodecContext) -> Parts:
        """(N values, any shape) -> "code" ceil(N / 2) uint8 and "scale" (G,) bfloat16."""
        return group_scaled.encode(x, group_length(self.chunk, x.numel(), moment), 4, fp4_rows)

    def decode(self, parts: Parts, shape: Size, moment: CodecContext) -> Tensor:
        """Parts -> float32 of `shape`. Raises ValueError on wrong sizes or a scale that is negative or not finite."""
        length = group_length(self.chunk, shape.numel(), moment)
        return group_scaled.decode(parts, shape, length, 4, fp4_rows_decode)
