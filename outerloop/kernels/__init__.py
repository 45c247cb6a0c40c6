"""The arithmetic of the hot path. `reference` defines it in plain torch."""
