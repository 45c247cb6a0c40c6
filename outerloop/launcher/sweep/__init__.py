"""The jobs of a sweep, which a hydra launcher may run in other processes."""
