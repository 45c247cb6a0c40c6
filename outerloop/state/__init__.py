"""State on disk: checkpoints, canonical encodings, files that survive a power cut."""
