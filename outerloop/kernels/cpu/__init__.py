"""CPU kernels, bit-identical to the reference implementations. Importing this package registers them."""

from outerloop.kernels.cpu import finite, land, positions, rotation, select, two_bit  # noqa: F401
