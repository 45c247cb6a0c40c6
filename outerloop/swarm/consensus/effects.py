"""What the agreement asks of the world around it, to be carried out in the order given."""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.hard_state import HardState
from outerloop.swarm.consensus.messages import Message


@dataclass(frozen=True)
class Persist:
    """Write `memory.to_bytes()` to disk, synced, before anything that follows: others will count on it.

    A commit is applied and passed on before it is saved: a majority has accepted it on theirs.
    """

    memory: HardState


@dataclass(frozen=True)
class Send:
    """At most once: what is lost is made up for by the next view."""

    to: str
    message: Message


@dataclass(frozen=True)
class ApplyCommit:
    """The round came to this. Get its payloads and take the outer step. A new round begins: start its timers."""

    commit: Commit


@dataclass(frozen=True)
class FetchPayloads:
    """These payloads of the round are proposed and not held: pull them from `holder` or any other, then say `holds`."""

    number: int
    participants: tuple[Participant, ...]
    holder: str


@dataclass(frozen=True)
class CatchUp:
    """`peer` is in round `number` already: get its `commits_since`, and `receive` them in order."""

    number: int
    peer: str


@dataclass(frozen=True)
class ChainLeft:
    """The chain was left for a better one (forks.py): what was applied from round `number` on does not hold any more.

    The commits of the other one are applied next.
    """

    number: int


@dataclass(frozen=True)
class Reject:
    """A message that changed nothing, and why: for the log.

    `parted`: its sender's chain is another one, or its log may tell what this one does not: get it, and `compare`.
    """

    sender: str
    reason: str
    parted: bool = False


Output = Persist | Send | ApplyCommit | FetchPayloads | CatchUp | ChainLeft | Reject
