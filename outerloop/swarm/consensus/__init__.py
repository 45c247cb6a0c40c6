"""Consensus on the commits of a run (paxos/, hotstuff/), as pure state machines without network or clock."""
