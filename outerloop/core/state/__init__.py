"""Save and restore the state of an outer loop: in files of one process, and with torch.distributed.checkpoint."""
