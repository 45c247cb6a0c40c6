"""The weights of one peer, in one process or sharded across several."""
