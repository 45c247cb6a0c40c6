"""Effects that the consensus asks its caller to carry out, in the given order."""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.messages import Message
from outerloop.swarm.consensus.state import HardState


@dataclass(frozen=True)
class Persist:
    """Write `hard_state.to_bytes()` to disk and sync it before any later effect, because other peers rely on it.

    A commit, however, is applied and passed on before it is saved: the accepts of a majority are already on disk.
    """

    hard_state: HardState


@dataclass(frozen=True)
class Send:
    """Send `message` to the peer `to`, at most once. The next view makes up for a lost message."""

    to: str
    message: Message


@dataclass(frozen=True)
class ApplyCommit:
    """Fetch the payloads of this decided commit and take the outer step. Start the timers of the next round."""

    commit: Commit


@dataclass(frozen=True)
class FetchPayloads:
    """Fetch these proposed payloads of the round from `holder` or another peer, and call `payload_stored` for each."""

    number: int
    participants: tuple[Participant, ...]
    holder: str


@dataclass(frozen=True)
class CatchUp:
    """Fetch later commits from the log of `peer`; pass them to `receive` in order. `number`: the round of `peer`."""

    number: int
    peer: str


@dataclass(frozen=True)
class ChainLeft:
    """Roll back: this peer switched to a better chain (forks.py), which replaces all commits from round `number` on.

    The commits of the better chain are applied next.
    """

    number: int


@dataclass(frozen=True)
class Reject:
    """Log that a message was rejected, and the reason.

    `compare_logs`: fetch the sender's log and call `compare_log`, because the sender is on another chain, or its log
    may reach further back.
    """

    sender: str
    reason: str
    compare_logs: bool = False


Effect = Persist | Send | ApplyCommit | FetchPayloads | CatchUp | ChainLeft | Reject
