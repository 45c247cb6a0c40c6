"""Compile the loops of the CPU ahead of their first use: `python -m outerloop.kernels.warm`, about ten seconds, once.

The machine code lies where compiled.py says: in the user's cache.
"""

from __future__ import annotations

import torch

from outerloop.kernels import positions
from outerloop.kernels.land import Landing, land
from outerloop.kernels.select import select
from outerloop.kernels.two_bit import two_bit_decode, two_bit_encode


def warm() -> None:
    """Call every operator once for float32 and for bfloat16 weights."""
    for dtype in (torch.float32, torch.bfloat16):
        slow, residual = torch.randn(100), torch.zeros(100)
        fast = slow.to(dtype)
        position_M, value_M, _ = select(slow, fast, residual, 0.9, 64, 4)
        two_bit_decode(*two_bit_encode(value_M, 4), len(value_M), 4)
        how = Landing(own=0, beta=0.9, chunk=64, k=4, by_senders=True, lr=1.0, mu=0.0, nesterov=False)
        land(slow, fast, residual, None, position_M[None], value_M[None], None, how)
    positions.rice_decode(positions.rice_encode(position_M, 100, 64, 4), 100, 64, 4)
    positions.elias_fano_decode(positions.elias_fano_encode(position_M, 100, 64, 4), 100, 64, 4)


if __name__ == "__main__":
    warm()
