"""Let the processes of an island join a run as one peer."""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig
from torch import distributed as dist
from torch.nn import Module

from outerloop.core.outer_loop import OuterLoop
from outerloop.exchange.island_replicated import ReplicatedIsland
from outerloop.exchange.island_sharded import ShardedIsland
from outerloop.protocols import Exchange
from outerloop.replica.gathered import Follower, Gathered
from outerloop.replica.rank_group import RankGroup
from outerloop.types import UserError


def join_as_one_peer(
    join: Callable[[], Exchange], *, shards: dist.ProcessGroup | None, copies: dist.ProcessGroup | None
) -> Exchange:
    """Return this process's exchange. Only the first process of each given group calls `join` and sends messages.

    shards: the processes that hold the shards of one model, or None if each shard is sent in its own message.
    copies: the processes that hold copies of this process's model or shards, or None if there are no copies.
    """

    def join_shards() -> Exchange:
        return ShardedIsland.joining(join, ranks=RankGroup(shards)) if shards else join()

    return ReplicatedIsland.joining(join_shards, ranks=RankGroup(copies)) if copies else join_shards()


def start_on_leader(island: Gathered, model: Module, start: Callable[[], OuterLoop]) -> OuterLoop | Follower:
    """Return the outer loop on the leader of a gathered island, and a Follower on each of its other ranks.

    start: joins the run and creates the outer loop. Only the leader calls it, while the others execute its commands.
    """
    if not island.ranks.is_leader:
        follower = Follower(island, model)
        follower.serve()
        return follower
    with island.followers_serving():
        outer = start()
        island.run_on_followers("move", inner_step=outer.inner_step)
    return outer


def refuse_shards_over_ranks(settings: DictConfig, shards: int) -> None:
    """Raise UserError if the exchange over all processes would connect processes that hold different shards."""
    if shards > 1 and settings.workers_as == "ranks":
        raise UserError(
            f'the model is split into {shards} shards, which are exchanged separately: pass mesh=MESH, dim="islands",'
            " or exchange=outerloop.Distributed(group=<the processes with the same shards, one from each island>),"
            " or set exchange=swarm_gather"
        )
