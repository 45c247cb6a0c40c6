"""A compressor and an outer method for outerloop, in a separate package."""
