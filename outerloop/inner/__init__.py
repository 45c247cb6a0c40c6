"""AXIS inner: how batches become inner steps."""
