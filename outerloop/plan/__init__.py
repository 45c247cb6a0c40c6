"""Forecast a run on a hypothetical network, from links to transfers to rounds. The code does no I/O."""
