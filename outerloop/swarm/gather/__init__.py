"""Gather rounds: all peers of the roster contribute payloads, and a majority decides which ones count."""
