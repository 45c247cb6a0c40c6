"""Define and check the options of SwarmGather."""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.swarm.gather.settings import GatherSettings
from outerloop.swarm.membership.session import NodeOptions
from outerloop.types import UserError

LEAST_PEERS = 4
"""Minimum number of peers with exchange.trust=nobody: fewer than a third of them may lie, so one of four."""


@dataclass(frozen=True, kw_only=True)
class GatherOptions(NodeOptions, GatherSettings):
    """Options of SwarmGather, in addition to those of the two base classes.

    A folder next to the key file stores the votes and the payloads of the last rounds.

    reform            resume with a different number of peers than before; missing peers are removed from the run
    patience_s        a peer that needs the run's state gives up after this number of seconds without any message about
                      the run; values below 90 are raised to 90
    audit             probability with which a peer is audited after a round (swarm/audit); 0: no audits
    audit_every       inner steps between two states that a peer commits to

    Raises:
        UserError: if an option is invalid.
    """

    reform: bool = False
    patience_s: float = 600.0
    audit: float = 0.0
    audit_every: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trust == "nobody" and self.peers < LEAST_PEERS and not self.reform:
            raise UserError(
                f"exchange.trust=nobody needs at least {LEAST_PEERS} peers to withstand one dishonest peer, but"
                f" exchange.peers={self.peers}: add peers, or set exchange.trust=members"
            )
        if not (isinstance(self.patience_s, int | float) and self.patience_s > 0):
            raise UserError(
                f"exchange.patience_s={self.patience_s} must be more than 0 seconds: set exchange.patience_s=600"
            )
        if not 0 <= self.audit <= 1:
            raise UserError(f"exchange.audit={self.audit} must be 0 .. 1: set exchange.audit=0.05, or 0 for no audits")
        if self.audit_every < 1:
            raise UserError(f"exchange.audit_every={self.audit_every} must be at least 1: set exchange.audit_every=5")
