"""Admission of invited peers to a run with an allow-list, and removals by `outerloop expel`."""
