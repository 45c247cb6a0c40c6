"""Inner training: turn batches of text into inner steps, and attach the outer loop to a training loop."""
