"""Processes of a run: supervisor, worker processes, torchrun, sweeps."""
