"""Compose the configuration from the options that a user types, and describe its options and errors."""
