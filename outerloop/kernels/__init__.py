"""The arithmetic of the hot path: defined in plain torch, declared as torch operators, compiled where a compiler is.

The dispatcher takes a compiled kernel where one is registered for the device, and the definition elsewhere.
"""

from contextlib import suppress

from outerloop.kernels import land, select, two_bit

with suppress(ImportError):  # numba is not there
    from outerloop.kernels import cpu_land, cpu_select, cpu_two_bit  # noqa: F401
with suppress(ImportError):  # triton is not there
    from outerloop.kernels import cuda_land, cuda_select, cuda_two_bit  # noqa: F401

__all__ = ["land", "select", "two_bit"]
