"""Top-k with a ladder of possible values of k. The chosen rung is sent with the tensor, as one byte.

    k = k_min, 2 k_min, 4 k_min, …, k_max

Because of this byte, each peer can choose k without coordination, and decoding does not depend on how k was chosen.
"""

from __future__ import annotations

import torch
from torch import Size, Tensor

from outerloop.compress import parts_behind
from outerloop.compress.index import Index
from outerloop.compress.topk import TopK
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError


class MultiKTopK:
    """Base class of top-k codecs with several values of k (the rungs of the ladder).

    A subclass chooses the rung for each tensor. On the wire, the index of the rung is called "step".

    Args:
        chunk: values in a chunk, 2 .. 65536.
        k_min: smallest number of values kept per chunk.
        k_max: largest number of values kept per chunk, 1 .. chunk.
        values: compressor of the kept values. It receives them in order, one group per chunk.
        index: encoding of the kept positions.

    Raises:
        UserError: if a setting is out of range.
    """

    linear = False

    def __init__(self, *, chunk: int, k_min: int, k_max: int, values: Compressor, index: Index) -> None:
        if not 1 <= k_min <= k_max:
            raise UserError(f"k_min={k_min} must be 1 .. k_max={k_max}: set compress.large.k_min={max(1, k_max // 8)}")
        lower = [k_min << i for i in range((k_max // k_min).bit_length()) if k_min << i < k_max]
        self.ladder = [TopK(chunk=chunk, k=k, values=values, index=index) for k in [*lower, k_max]]

    def encode_at(self, rung: int, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (any shape) to the parts of TopK, plus "step" (1,) uint8, the index of the rung."""
        return {"step": x.new_tensor([rung], dtype=torch.uint8)} | self.ladder[rung].encode(x, context)

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a dense float32 tensor of `shape`. Raises ValueError on an unknown step or invalid parts."""
        topk_parts, rung = parts_behind("step", parts), parts["step"]
        if rung.shape != (1,) or rung.dtype != torch.uint8 or int(rung) >= len(self.ladder):
            raise ValueError(
                f"'step' has shape {tuple(rung.shape)} and dtype {rung.dtype}, expected one uint8 value from 0 to"
                f" {len(self.ladder) - 1}"
            )
        return self.ladder[int(rung)].decode(topk_parts, shape, context)
