"""Audit inner steps: a peer commits to its states, and another peer replays a window of steps that a commit selects."""
