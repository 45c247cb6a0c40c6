"""Consensus on the commits of a run (Paxos), as pure state machines without network or clock."""
