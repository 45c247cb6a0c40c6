"""Gossip rounds: peers exchange payloads in pairs."""
