"""The run manifest: the settings of a run, signed by a peer for machines that want to join, also sent by relays."""
