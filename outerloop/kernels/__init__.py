"""The arithmetic of the hot path: defined in plain torch, declared as torch operators, compiled where a compiler is.

The dispatcher takes a compiled kernel where one is registered for the device, and the definition elsewhere.
"""

import logging
from contextlib import suppress

import torch

try:
    from outerloop.kernels import (  # noqa: F401  register themselves
        cpu_finite,
        cpu_land,
        cpu_positions,
        cpu_select,
        cpu_two_bit,
    )
except ImportError as missing:
    logging.getLogger(__name__).warning("no compiled loops, kernels run in plain torch: %s", missing)
if torch.cuda.is_available():
    with suppress(ImportError):  # triton is not there
        from outerloop.kernels import cuda_land, cuda_select, cuda_two_bit  # noqa: F401  the same
