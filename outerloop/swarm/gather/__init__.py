"""Gather rounds: every peer of the roster contributes a payload, and all agree on which payloads count."""
