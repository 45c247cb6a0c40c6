"""The trainer's part in audits: record the states between inner steps, and replay windows of other peers' steps."""
