"""One file a command. Hydra is imported here and nowhere below."""
