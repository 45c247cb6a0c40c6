"""Sinks for the rows of a run: metrics.jsonl, terminal, Weights & Biases, TensorBoard, trackio, or your own class.

`sink.py` defines the interface. `charts.py` names the charts that all loggers draw.
"""
