"""CPU kernels, bit-identical to the reference implementations. Importing this package registers them."""

from outerloop.kernels.cpu import exact_squares, finite, land, positions, rotation, select, sign, two_bit  # noqa: F401
