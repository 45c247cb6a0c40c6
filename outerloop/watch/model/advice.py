"""State what a user can do about a peer or a run in trouble, in one line each."""

from __future__ import annotations

from outerloop.watch.model.page import PeerPhase, RunPhase

CURE_OF_PEER: dict[PeerPhase, str] = {
    "waiting": "if it lasts, check the peers that it waits for",
    "catching up": "nothing to do: it continues by itself",
    "failed": "nothing is lost; if it repeats, check the link of this peer",
    "silent": "check that its machine is on and that its port is reachable: outerloop doctor --peer ADDRESS",
    "left": "start the same command with the same run_dir to return to the run",
    "died": "read workers/<index>/log.txt of its run directory, then start the same command with the same run_dir",
    "expelled": "outerloop expelled RUN_DIR lists the evidence; --lift readmits a peer",
}
"""State of a peer -> advice for its operator. The other states need no advice."""
CURE_OF_RUN: dict[RunPhase, str] = {
    "silent": "check that the process is still running; if not, the same command with the same run_dir resumes",
    "stopped": "the same command with the same run_dir resumes from the last checkpoint",
    "died": "remove the cause; the same command with the same run_dir resumes from the last checkpoint",
}
"""State of a run -> advice for its operator. The other states need no advice."""


def cure_of_peer(state: PeerPhase) -> str:
    """Return the advice for the operator of a peer in this state, or "" if the state needs no advice."""
    return CURE_OF_PEER.get(state, "")


def cure_of_run(state: RunPhase) -> str:
    """Return the advice for the operator of a run in this state, or "" if the state needs no advice."""
    return CURE_OF_RUN.get(state, "")
