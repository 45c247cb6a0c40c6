"""The run's state for a peer that joins late or fell behind."""
