"""Triton kernels for CUDA, bit-identical to their definitions. The import registers them."""

from outerloop.kernels.triton import land, select, two_bit  # noqa: F401
