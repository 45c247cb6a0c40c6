"""AXIS schedule: which fragment leaves and which lands after inner step t. Pure: no state, no clock. One a file."""
