"""Gather rounds: all peers of the roster contribute payloads and agree on which ones count."""
