"""Gossip between threads: each round divides the workers into small random groups, which are drawn from a common seed.

NoLoCo (arXiv 2506.10911) uses pairs. If the workers cannot be divided evenly, the last group is smaller; a worker that
is alone in its group applies only its own update.
"""

from __future__ import annotations

from dataclasses import replace

from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.gossip_groups import checked_group, group_of
from outerloop.types import Round


class InProcessGossip(InProcess):
    """The exchange of one worker, which exchanges messages with `group - 1` other workers per round.

    Args:
        hub, rank: as for InProcess.
        group: number of workers per group, 2 or more.
        seed: seed from which the groups are drawn; must be equal for all workers.

    Raises:
        UserError: if `group` is below 2.
    """

    info = replace(InProcess.info, agrees=False)

    def __init__(self, *, hub: Hub, rank: int, group: int, seed: int) -> None:
        super().__init__(hub=hub, rank=rank)
        self.group, self.seed = checked_group("exchange.group", group), seed

    def partners(self, round: Round) -> list[int]:
        """Return the ranks in this worker's group in a round, in ascending order, including its own."""
        return group_of(self.rank, size=self.size, group=self.group, seed=self.seed, round_id=round)
