"""Effects that the agreement asks its caller to carry out, in the order given."""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.messages import Message
from outerloop.swarm.consensus.state import HardState


@dataclass(frozen=True)
class Persist:
    """Write `hard_state.to_bytes()` to disk, synced, before carrying out any later effect: other peers will rely on it.

    A commit is applied and passed on before it is saved: a majority has its accepts on disk.
    """

    hard_state: HardState


@dataclass(frozen=True)
class Send:
    """Send `message` to the peer `to`, at most once: the next view makes up for a lost message."""

    to: str
    message: Message


@dataclass(frozen=True)
class ApplyCommit:
    """Fetch the payloads of this decided commit and take the outer step. A new round begins: start its timers."""

    commit: Commit


@dataclass(frozen=True)
class FetchPayloads:
    """Pull these proposed payloads of the round from `holder` or another peer, then call `payload_stored` for each."""

    number: int
    participants: tuple[Participant, ...]
    holder: str


@dataclass(frozen=True)
class CatchUp:
    """Get `commits_since` from `peer`, which is in round `number` already, and `receive` them in order."""

    number: int
    peer: str


@dataclass(frozen=True)
class ChainLeft:
    """Roll back: the peer switched to a better chain (forks.py), so commits applied from round `number` on are invalid.

    The commits of the better chain are applied next.
    """

    number: int


@dataclass(frozen=True)
class Reject:
    """Log that a message changed nothing, and the reason.

    `compare_logs`: the sender is on another chain, or its log may contain more than this one: get its log and call
    `compare_log`.
    """

    sender: str
    reason: str
    compare_logs: bool = False


Effect = Persist | Send | ApplyCommit | FetchPayloads | CatchUp | ChainLeft | Reject
