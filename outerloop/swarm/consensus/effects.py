"""Effects that the consensus returns to its caller, which must carry them out in order."""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.messages import Message
from outerloop.swarm.consensus.state import HardState


@dataclass(frozen=True)
class Persist:
    """Write `hard_state.to_bytes()` to disk, and sync it before any later effect, because other peers rely on it.

    A decided commit may be applied and sent before it is saved, because a majority of the roster has saved its votes
    for that commit.
    """

    hard_state: HardState


@dataclass(frozen=True)
class Send:
    """Send `message` to the peer `to` once. A lost message is not sent again; the next view sends new ones."""

    to: str
    message: Message


@dataclass(frozen=True)
class ApplyCommit:
    """Fetch the payloads of this decided commit and take the outer step. Start the timers of the next round."""

    commit: Commit


@dataclass(frozen=True)
class FetchPayloads:
    """Fetch these payloads of round `number`, which a proposal names, from `holder` or another peer.

    Call `payload_stored` for each payload once it is stored.
    """

    number: int
    participants: tuple[Participant, ...]
    holder: str


@dataclass(frozen=True)
class CatchUp:
    """Fetch the commits that this peer lacks from the log of `peer`, and pass them to `receive` in order.

    `number`: the round or commit that the message of `peer` was about.
    """

    number: int
    peer: str


@dataclass(frozen=True)
class ChainLeft:
    """Roll back all commits from round `number` on, because this peer switched to a better chain (forks.py).

    The next effects apply the commits of the better chain.
    """

    number: int


@dataclass(frozen=True)
class Reject:
    """Log that a message from `sender` was rejected, and why.

    If `compare_logs` is True, also fetch the sender's log and call `compare_log`: the sender may be on another chain,
    or its log may reach further back.
    """

    sender: str
    reason: str
    compare_logs: bool = False


Effect = Persist | Send | ApplyCommit | FetchPayloads | CatchUp | ChainLeft | Reject
