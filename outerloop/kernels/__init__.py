"""The arithmetic of the hot path: defined in plain torch, declared as torch operators, compiled where a compiler is.

The dispatcher takes a compiled kernel where one is registered for the device (cpu/, triton/), and the definition
elsewhere.
"""

import logging
from contextlib import suppress

import torch

try:
    from outerloop.kernels import cpu  # noqa: F401  its kernels register themselves
except ImportError as missing:
    logging.getLogger(__name__).warning("no compiled loops, kernels run in plain torch: %s", missing)
if torch.cuda.is_available():
    with suppress(ImportError):  # triton is not there
        from outerloop.kernels import triton  # noqa: F401  the same
