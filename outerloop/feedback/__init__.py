"""AXIS feedback: what a peer remembers of the values that it did not send. One algorithm per file."""
