"""Forecast of a run on a hypothetical network: links, transfers, rounds. Pure functions without I/O."""
