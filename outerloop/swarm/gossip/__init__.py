"""Gossip rounds: peers exchange payloads in pairs, without a barrier."""
