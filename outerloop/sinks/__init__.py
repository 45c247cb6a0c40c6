"""Sinks for the rows of a run: metrics.jsonl, terminal, Weights & Biases, TensorBoard, trackio, or a class of your own.

`sink.py` defines the interface. `charts.py` names the charts that all loggers draw.
"""
