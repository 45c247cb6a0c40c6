"""AXIS schedule: which fragment leaves and which lands after inner step t. Pure between two landings. One a file."""
