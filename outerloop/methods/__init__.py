"""AXIS method: how the mean of the contributions updates the slow weights. One algorithm per file."""
