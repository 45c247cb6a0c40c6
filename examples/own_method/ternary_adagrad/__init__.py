"""A compressor and an outer method for outerloop, in a package of their own."""
