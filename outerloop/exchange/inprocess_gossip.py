"""Gossip between threads: every round the workers are dealt into small random groups, the same for all by the seed.

NoLoCo (arXiv 2506.10911) deals pairs. What does not fill a group stays a smaller one; one left alone takes a solo step.
"""

from __future__ import annotations

from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.gossip_groups import checked_group, group_of
from outerloop.types import Round


class InProcessGossip(InProcess):
    """One worker's end of a `Hub`, meeting `group - 1` others a round.

    Args:
        hub, rank: as for InProcess.
        group: workers that meet, 2 or more.
        seed: of the dealing; equal for all workers.

    Raises:
        UserError: if `group` is below 2.
    """

    agrees = False

    def __init__(self, *, hub: Hub, rank: int, group: int, seed: int) -> None:
        super().__init__(hub=hub, rank=rank)
        self.group, self.seed = checked_group("exchange.group", group), seed

    def partners(self, round: Round) -> list[int]:
        """This worker's group of the round, in order of rank."""
        return group_of(self.rank, size=self.size, group=self.group, seed=self.seed, round=round)
