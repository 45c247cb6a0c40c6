"""Compose the configuration from a user's options, document the available options, and explain errors."""
