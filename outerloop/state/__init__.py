"""Store state on disk: checkpoints, canonical encodings, crash-safe files."""
