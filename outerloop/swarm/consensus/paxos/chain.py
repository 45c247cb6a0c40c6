"""The chain of commits that are decided by Paxos (exchange.trust=members), and the faults that it withstands.

Fault model. Peers may stop, lag, lose messages and restart from their disks; nothing worse is assumed. Any minority of
a round's roster may be gone, and the other peers continue. No round ever has two commits, whichever peers are gone.

If roster peers lie, in any way, while the honest roster peers that are up form a majority by themselves:
    progress        Rounds continue if at most (n - 1) // 3 of n peers lie: the liars cannot force a view change, lead
                    only in turn, and lead last once one of their views has failed (commit.py).
    rosters         Liars that are fewer than half of the roster cannot choose the next one: they cannot admit a peer
                    without its request or more peers than the rule allows, and cannot drop a peer whose payloads reach
                    an honest leader in time (roster_change.py).
    commits         No commit is applied that a majority of its roster has not signed, however many peers lie.
    forks           A fork requires two majorities, and every peer that belongs to both must lie. Let m be the number of
                    roster peers that have not resigned. For an even m, at least two peers belong to both majorities, so
                    one liar of four peers cannot cause a fork. For an odd m, it may be a single peer, e.g. in a roster
                    of four after an honest peer has resigned: that liar can show one commit to some peers and another
                    commit to the rest, as long as the two groups exchange no messages. Both groups then follow signed
                    commits. The two decided commits of the round contain two contradictory statements of one peer
                    (justification.py), which identify the liar to all peers.
    not covered     The leader of a view chooses which payloads count, and may leave some out.
"""

from __future__ import annotations

from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.messages import Accept
from outerloop.swarm.consensus.paxos.instance import PaxosInstance
from outerloop.swarm.consensus.paxos.state import PaxosState


class PaxosChain(PaxosInstance, Chain):
    """One peer's state machine for a chain whose commits are decided even if a minority of the peers is gone."""

    byzantine = False
    _round_state = PaxosState
    _ballot = Accept
