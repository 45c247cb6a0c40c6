"""Where the rows of a run go: metrics.jsonl, the terminal, Weights & Biases. A sink never stops training."""
