"""AXIS schedule: which fragments of the model launch and land after an inner step. One schedule per file.

A schedule changes its state only when a round lands.
"""
