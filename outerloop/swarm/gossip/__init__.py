"""Rounds in pairs."""
