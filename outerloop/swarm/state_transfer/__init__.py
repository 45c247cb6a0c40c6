"""Transfer of the run's state to a peer that joins late or has fallen behind."""
