"""The outer loop: rounds of one peer, from the pseudo-gradient that it launches to the update that lands."""
