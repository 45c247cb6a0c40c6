"""Compiled CPU loops of the kernels, bit-identical to their definitions. Importing this package registers them."""

from outerloop.kernels.cpu import finite, land, positions, rotation, select, two_bit  # noqa: F401
