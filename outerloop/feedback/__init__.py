"""AXIS feedback: how a peer keeps the values that it did not send. One algorithm per file."""
