"""Agreement on the commits of a run (Paxos), as pure state machines: no network, no clock."""
