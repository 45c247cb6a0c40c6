"""Forecast of a run on a hypothetical network: links, transfers, rounds. Pure functions on numpy and heapq, no I/O."""
