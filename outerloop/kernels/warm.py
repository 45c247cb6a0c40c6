"""Compile the CPU loops before their first use. Run `python -m outerloop.kernels.warm` once; it takes about 10 s.

The machine code is stored in the user's cache folder: see cpu/compiled.py.
"""

from __future__ import annotations

import itertools

import torch

from outerloop.kernels.eight_bit import to_eight_bit
from outerloop.kernels.elias_fano import elias_fano_decode, elias_fano_encode
from outerloop.kernels.exact_squares import exact_squares
from outerloop.kernels.finite import finite
from outerloop.kernels.land import Landing, land
from outerloop.kernels.rice import rice_decode, rice_encode
from outerloop.kernels.rotation import random_signs, rotate
from outerloop.kernels.select import Selection, select
from outerloop.kernels.sign import sign_decode, sign_encode
from outerloop.kernels.two_bit import two_bit_decode, two_bit_encode


def warm() -> None:
    """Call every operator for float32 and bfloat16 weights, each with a 32-bit and an 8-bit residual."""
    slow, signs = torch.randn(100, dtype=torch.float32), random_signs(100, 0)
    residuals = [(torch.zeros_like(slow), None), to_eight_bit(torch.zeros_like(slow))]
    for dtype, residual in itertools.product((torch.float32, torch.bfloat16), residuals):
        fast = slow.to(dtype)
        position_M, value_M, _ = select(slow, fast, *residual, None, Selection(0.9, 256, 4))
        finite(value_M)
        code, level_G2 = two_bit_encode(value_M, 4)
        two_bit_decode([code], [level_G2], len(value_M), 4)
        how = Landing(own=0, beta=0.9, chunk=256, k=4, by_senders=True, lr=1.0, mu=0.0, nesterov=False)
        land(slow, fast, *residual, None, position_M[None], value_M[None], None, None, None, how)
    local = how._replace(beta=0.0, unsent_share=0.5)
    land(slow, fast.float(), None, None, None, position_M[None], value_M[None], None, signs, None, local)
    code, scale_G = sign_encode(slow, 4)
    sign_decode([code], [scale_G], 100, 4)
    exact_squares(slow.view(1, -1), 50)
    rotate(slow, signs, 64, False)
    rice_decode([rice_encode(position_M, 100, 256, 4)], 100, 256, 4)
    elias_fano_decode([elias_fano_encode(position_M, 100, 256, 4)], 100, 256, 4)


if __name__ == "__main__":
    warm()
