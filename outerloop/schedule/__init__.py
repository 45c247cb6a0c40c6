"""AXIS schedule: which fragments launch and land after each inner step. Pure between landings; one schedule per file."""
