"""The chain of commits that are decided by HotStuff-2 (exchange.trust=nobody)."""

from __future__ import annotations

from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.hotstuff.messages import Vote
from outerloop.swarm.consensus.hotstuff.replica import HotStuffReplica
from outerloop.swarm.consensus.hotstuff.state import HotStuffState


class HotStuffChain(HotStuffReplica, Chain):
    """One peer's state machine for a chain whose commits are decided even if some peers lie (fewer than a third)."""

    byzantine = True
    _round_state = HotStuffState
    _ballot = Vote
