"""Triton kernels for CUDA, each equal to its definition bit for bit. The import registers them."""

from outerloop.kernels.triton import land, select, two_bit  # noqa: F401
