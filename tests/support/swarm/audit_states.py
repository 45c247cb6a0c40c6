"""States of audited peers in memory: three short texts each."""

from __future__ import annotations

import hashlib

from outerloop.swarm.audit.leaves import Leaf

WINDOWS = 3
State = tuple[bytes, bytes, bytes]


def state_of(peer: str, number: int, window: int) -> State:
    """Return the state of a peer before a window of a round. The next round begins with the same optimizer."""
    step = f"{peer} {number * WINDOWS + window}"
    return f"weights {step}".encode(), f"optimizer {step}".encode(), f"rest {peer}".encode()


def leaf_of(state: State) -> Leaf:
    return Leaf(*(hashlib.sha256(part).digest() for part in state))
