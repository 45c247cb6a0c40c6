"""Paxos consensus on the commits of a run, as pure state machines without network or clock."""
