"""The outer loop: rounds of one peer, from launching a pseudo-gradient to landing an update."""
