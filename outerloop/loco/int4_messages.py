"""Encode pieces of a gradient as 4-bit messages of equal size, one per rank: first the codes, then the groups' scales.

    scale = max |x| / 7;  code = 7 + round(x / scale);  x̂ = (code - 7) scale

x: the values of one group, i.e. of 64 consecutive values of one piece. x̂: the decoded values. The encoding is that of
`compress=int4`, but a group with NaN or infinity decodes to NaN, so that a GradScaler detects it.

Shapes: R pieces, P values per piece, G groups in total, L values per group, B bytes per message.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from outerloop.kernels.reference import pack_codes, packed_bytes, uniform_levels, uniform_rows, unpack_codes

BITS = 4
GROUP = 64
"""Number of values that share a scale; the last group of a piece is padded with zeros."""


def encode(x_RP: Tensor) -> Tensor:
    """Encode R pieces (R, P) float32 as R messages (R, B) uint8."""
    ranks, length = x_RP.shape
    known_RP = torch.where(x_RP.isfinite(), x_RP, torch.nan)
    code_GL, scale_G = uniform_rows(pad(known_RP, (0, -length % GROUP)).view(-1, GROUP), BITS)
    code_RB = pack_codes(code_GL.view(-1), BITS).view(ranks, -1)
    return torch.cat([code_RB, scale_G.view(ranks, -1).view(torch.uint8)], dim=1)


def decode(message_RB: Tensor, length: int) -> Tensor:
    """Decode R messages (R, B) uint8 to R pieces of `length` values each, (R, length) float32."""
    ranks, padded = len(message_RB), length + -length % GROUP
    code_RB, scale_RB = message_RB.split([packed_bytes(padded, BITS), 2 * padded // GROUP], dim=1)
    code_GL = unpack_codes(code_RB.reshape(-1), BITS, ranks * padded).view(-1, GROUP)
    scale_G = scale_RB.reshape(-1).view(torch.bfloat16)
    return uniform_levels(code_GL, scale_G, BITS).view(ranks, padded)[:, :length]
