"""User settings that decide when a gather round closes, with validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.state import ROUNDS_KEPT
from outerloop.types import UserError

Quorum = Literal["majority", "all", "min_peers"]
Trust = Literal["members", "nobody"]


@dataclass(frozen=True, kw_only=True)
class GatherSettings:
    """Settings of gather rounds, explained in proposer.py and round_timers.py. Raises UserError if one is invalid.

    peers             number of peers in the run
    quorum            payloads that a round needs even after the grace period: those of a "majority" of the roster, of
                      "all" its peers, or only "min_peers"
    trust             protocol that decides the rounds. trust=members: Paxos, for peers that may crash but do not lie.
                      trust=nobody: HotStuff-2, which also withstands lying peers if they are fewer than a third
    min_peers         minimum number of payloads in a round; None: 2, or 1 in a run of one peer
    min_fraction      fraction of the roster, 0 .. 1, whose payloads a round needs to close before its deadline
    grace_s           seconds that a round waits for slower peers once it has enough payloads; may differ between peers
    deadline_s        seconds that a round waits for enough payloads after its first one. Then min_peers payloads are
                      enough, except with quorum="all"
    absent_rounds     number of consecutive missed rounds after which a peer leaves the roster, until it returns
    fragments         number of fragments in the schedule; each fragment of a round has a commit
    """

    peers: int
    quorum: Quorum = "majority"
    trust: Trust = "members"
    min_peers: int | None = None
    min_fraction: float = 0.0
    grace_s: float = 3.0
    deadline_s: float = 120.0
    absent_rounds: int = 2
    fragments: int = 1

    def __post_init__(self) -> None:
        if self.quorum not in get_args(Quorum):
            raise _error("quorum", self.quorum, f"must be one of {', '.join(get_args(Quorum))}", "majority")
        if self.trust not in get_args(Trust):
            raise _error("trust", self.trust, f"must be one of {', '.join(get_args(Trust))}", "members")
        if self.min_peers is not None and not 1 <= self.min_peers <= self.peers:
            raise _error("min_peers", self.min_peers, f"must be 1 .. peers={self.peers}", min(2, self.peers))
        if not 0 <= self.min_fraction <= 1:
            raise _error("min_fraction", self.min_fraction, "must be 0 .. 1", 0.5)
        if self.min_fraction and self.quorum == "all":
            raise _error("min_fraction", self.min_fraction, "has no effect with quorum=all", 0.0)
        if self.grace_s < 0:
            raise _error("grace_s", self.grace_s, "must be 0 or more", 3.0)
        if self.deadline_s < self.grace_s:
            raise _error("deadline_s", self.deadline_s, f"must be at least grace_s={self.grace_s:g}", self.grace_s)
        if not 1 <= self.absent_rounds <= ROUNDS_KEPT:
            raise _error("absent_rounds", self.absent_rounds, f"must be 1 .. {ROUNDS_KEPT}", 2)

    @property
    def gather_policy(self) -> GatherPolicy:
        """The policy that decides when a leader may close a round, with the default of `min_peers` filled in."""
        min_peers = min(2, self.peers) if self.min_peers is None else self.min_peers
        return GatherPolicy(min_peers=min_peers, min_fraction=self.min_fraction, quorum=self.quorum)


def _error(option: str, value: Any, allowed: str, valid: Any) -> UserError:
    return UserError(f"exchange.{option}={value} {allowed}: set exchange.{option}={valid}")
