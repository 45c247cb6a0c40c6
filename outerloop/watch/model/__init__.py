"""Compute the state of the page from records. Nothing in this package reads files, clocks or the network."""
