"""One bit a value: its sign, with the mean magnitude of its group (scaled signSGD, arXiv 1802.04434, 1901.09847).

    x̂ = sign(x) * mean |x| of the group,  sign(0) = 1

The mean is the magnitude of least squared error: ‖x − x̂‖² = ‖x‖² − L (mean |x|)², never longer than x. Error feedback
flattens the magnitudes inside a chunk, so inside `topk` one bit and one mean say almost everything: at equal bytes more
values of one bit beat fewer of two. Needs error feedback.

N values, G groups, L values a group.
"""

from __future__ import annotations

from torch import Size, Tensor

from outerloop.compress import group_scaled
from outerloop.compress.group_scaled import checked_chunk, group_length
from outerloop.kernels.reference import sign_rows, sign_rows_decode
from outerloop.types import CodecContext, Parts


class Sign:
    """1 bit a value and one bfloat16 mean a group.

    Args:
        chunk: values in a group; None inside a sparse codec: a group is what one chunk kept.

    Raises:
        UserError: if `chunk` is not positive.
    """

    linear = False

    def __init__(self, *, chunk: int | None) -> None:
        self.chunk = checked_chunk("sign", chunk)

    def encode(self, x: Tensor, moment: CodecContext) -> Parts:
        """(N values, any shape) -> "code" ceil(N / 8) uint8 and "scale" (G,) bfloat16."""
        return group_scaled.encode(x, group_length(self.chunk, x.numel(), moment), 1, sign_rows)

    def decode(self, parts: Parts, shape: Size, moment: CodecContext) -> Tensor:
        """Parts -> float32 of `shape`. Raises ValueError on wrong sizes or a scale that is negative or not finite."""
        length = group_length(self.chunk, shape.numel(), moment)
        return group_scaled.decode(parts, shape, length, 1, sign_rows_decode)
