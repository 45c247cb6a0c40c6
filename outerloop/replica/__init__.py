"""The weights of one peer, on one process or cut over several."""
