"""Sinks for the metrics of a run: metrics.jsonl, the terminal, Weights & Biases. Sinks never stop training."""
