"""AXIS inner: who turns batches into inner steps."""
