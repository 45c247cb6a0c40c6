"""Start and supervise the processes of a run: local workers, torchrun ranks and sweeps."""
