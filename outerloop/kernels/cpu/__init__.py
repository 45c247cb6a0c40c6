"""Compiled CPU loops of the kernels, each equal to its definition bit for bit. The import registers them."""

from outerloop.kernels.cpu import finite, land, positions, select, two_bit  # noqa: F401
