"""Fixtures that start real peers on loopback."""

from tests.support.swarm.daemons import make, make_gossip, started

__all__ = ["make", "make_gossip", "started"]
