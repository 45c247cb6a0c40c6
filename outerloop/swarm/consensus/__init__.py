"""Consensus on the commits of a run, as pure state machines without network or clock.

One object, a PaxosChain or a HotStuffChain (exchange.trust), contains a peer's part in it. Each class extends the one
above it, or those that are named:

    Pacemaker         view_change.py         moves from view to view: if a leader is silent, the next peer leads
    RoundInstance     round_instance.py      adds what a round needs in every protocol: payloads, checks, resignations
    ForkResolver      forks.py               adds the switch to the better chain if two chains of the run exist
    Chain             chain.py               adds the sequence of rounds: receives all messages, and applies each commit
    PaxosInstance     paxos/instance.py      extends RoundInstance by the votes of Paxos
    HotStuffReplica   hotstuff/replica.py    extends RoundInstance by the votes of HotStuff-2
    PaxosChain        paxos/chain.py         joins PaxosInstance and Chain
    HotStuffChain     hotstuff/chain.py      joins HotStuffReplica and Chain
"""
