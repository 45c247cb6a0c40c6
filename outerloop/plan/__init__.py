"""Forecast a run on a hypothetical network: model the links, the transfers over them, and the rounds. Do no I/O."""
