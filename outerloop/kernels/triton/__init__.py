"""Triton kernels for CUDA, bit-identical to the reference implementations. Importing this package registers them.

Raises ImportError if Triton is missing or older than 3.6: Triton 3.5, which torch 2.9 installs, rounds denormal numbers
to zero.
"""

import triton
from packaging.version import Version

OLDEST = "3.6"
"""The first version that keeps denormal numbers."""
if Version(triton.__version__) < Version(OLDEST):
    raise ImportError(f"Triton {triton.__version__} rounds denormal numbers to zero: install Triton {OLDEST} or later")

from outerloop.kernels.triton import land, select, two_bit  # noqa: E402, F401
