"""Encode each value as its sign, with one mean magnitude per group (scaled signSGD, arXiv 1802.04434, 1901.09847).

    x̂ = sign(x) * mean |x| of the group,  sign(0) = 1

The mean is the magnitude with the least squared error: ‖x − x̂‖² = ‖x‖² − L (mean |x|)², at most ‖x‖². Error feedback
makes the magnitudes within a chunk more equal. So inside `topk`, one bit per value and one mean carry almost all
information: for the same size, more one-bit values are better than fewer two-bit values. Needs error feedback.

x̂ is the decoded value of x. Sizes: N values, G groups, L values per group.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Size, Tensor

from outerloop.compress import check_names
from outerloop.compress.group_scaled import check_scales, checked_chunk, group_length
from outerloop.kernels.reference import check_codes
from outerloop.kernels.sign import sign_decode, sign_encode
from outerloop.types import CodecContext, Parts


class Sign:
    """Quantizer with 1 bit per value and one bfloat16 mean per group.

    Args:
        chunk: values per group. Use None inside a sparse codec, where a group is the kept values of one chunk.

    Raises:
        UserError: if `chunk` is not positive.
    """

    linear = False

    def __init__(self, *, chunk: int | None) -> None:
        self.chunk = checked_chunk("sign", chunk)

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (N values, any shape) to "code", ceil(N / 8) uint8, and "scale", one bfloat16 per group."""
        length = group_length(self.chunk, x.numel(), context)
        code, scale_G = sign_encode(x.detach().float().reshape(-1), length)
        return {"code": code, "scale": scale_G}

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a float32 tensor of `shape`. Raises ValueError on wrong sizes or invalid scales."""
        return self.decode_all([parts], shape, context)[0]

    def decode_all(self, parts_P: Sequence[Parts], shape: Size, context: CodecContext) -> Tensor:
        """Decode the parts of P peers together to (P, *shape) float32. Raises ValueError if any parts are invalid."""
        count = shape.numel()
        length = group_length(self.chunk, count, context)
        for parts in parts_P:
            check_names(parts, "code", "scale")
            check_scales(parts["scale"], count, length)
            check_codes(parts["code"], 1, count)
        codes, scales = ([parts[name] for parts in parts_P] for name in ("code", "scale"))
        return sign_decode(codes, scales, count, length).view(len(codes), *shape)
