"""AXIS method: what the mean of the contributions does to the slow weights. One algorithm a file."""
