"""Callbacks that run the outer loop in the training loops of other libraries."""
