"""Compiled CPU loops of the kernels, bit-identical to their definitions. The import registers them."""

from outerloop.kernels.cpu import finite, land, positions, select, two_bit  # noqa: F401
