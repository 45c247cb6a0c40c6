"""Triton kernels for CUDA, bit-identical to their definitions. Importing this package registers them."""

from outerloop.kernels.triton import land, select, two_bit  # noqa: F401
