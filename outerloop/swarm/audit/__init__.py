"""Audits of inner steps: peers commit to their states, and others replay a window of steps that a commit selects."""
