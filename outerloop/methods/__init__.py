"""AXIS method: how the aggregated contributions update the slow weights. One algorithm per file."""
