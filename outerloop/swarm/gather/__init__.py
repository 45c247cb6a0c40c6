"""Rounds that all peers of the roster take part in."""
