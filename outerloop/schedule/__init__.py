"""AXIS schedule: which fragments launch and land after an inner step. Pure between landings. One schedule per file."""
