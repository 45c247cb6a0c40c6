"""Golomb-Rice code for the gaps between kept positions: 7.52 bits each if 64 of 4096 are kept, 2 % above entropy.

    gap = position - previous position - 1  ->  gap >> b zeros, a one, the b low bits of gap

b is computed from (chunk, k). The table shows the bits per position for uniformly random positions and chunk 4096,
including all overhead, and the entropy bound log2 C(4096, k) / k:

    k        8      16     32     64     128    256    512    1024
    Rice   10.34   9.44   8.49   7.52   6.52   5.49   4.43   3.30
    bound  10.09   9.23   8.32   7.36   6.38   5.38   4.34   3.24

Rows are grouped into lanes of about 1024 positions. The sizes of the lanes come first, so that lanes can be decoded in
parallel. Sizes depend on the positions. kernels/rice.py describes the layout and the choice of b (Rice 1979; Kiely
2004).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outerloop.compress.index import decoded
from outerloop.kernels.rice import rice_decode, rice_encode
from outerloop.kernels.select import Rows


class Rice:
    """Rice index, the most compact code if at most half of the values are kept.

    If 38 % or more of the values are kept, each chunk is encoded as a bit mask with a one for each kept value.
    """

    def encode(self, position_M: Tensor, rows: Rows) -> Tensor:
        """Encode M kept positions (int32) to bytes (uint8). Raises ValueError unless they ascend within each chunk."""
        return rice_encode(position_M, rows.count, rows.chunk, rows.k)

    def decode(self, bytes_P: Sequence[Tensor], rows: Rows) -> Tensor:
        """Decode the bytes of P peers to kept positions, (P, M) int32. Raises ValueError on invalid bytes."""
        return decoded(rice_decode, bytes_P, rows)
