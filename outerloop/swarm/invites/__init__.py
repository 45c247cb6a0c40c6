"""Admit invited peers to a run with an allow-list, and spread removals (`outerloop expel`) and withdrawals."""
