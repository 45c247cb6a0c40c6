"""AXIS schedule: which fragments launch and land after inner step t. Pure between landings. One schedule per file."""
