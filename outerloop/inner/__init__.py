"""AXIS inner: training code that turns batches into inner steps."""
