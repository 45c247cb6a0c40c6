"""AXIS feedback: what a peer remembers of what it did not send. One algorithm a file."""
