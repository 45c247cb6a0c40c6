"""Sinks for the rows of a run: metrics.jsonl, the terminal, Weights & Biases. A sink never stops training."""
