"""Create the outer loop of a recipe for the user's own model. Options are those of `outerloop train`."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch.nn import Module

from outerloop.config import build, load, run_directory
from outerloop.config.island_checks import single_process_options
from outerloop.config.peer_check import start_together
from outerloop.core.outer_loop import OuterLoop
from outerloop.exchange.island_replicated import ReplicatedIsland
from outerloop.exchange.island_sharded import ShardedIsland
from outerloop.exchange.network_peer import NetworkPeer
from outerloop.protocols import Exchange
from outerloop.replica.gathered import Follower, Gathered
from outerloop.replica.island import Island
from outerloop.replica.rank_group import RankGroup
from outerloop.replica.sharding import num_processes, num_shards, process_group, replica_group, shard_group
from outerloop.types import UserError

logger = logging.getLogger(__name__)
State = dict[str, Any]


def from_recipe(
    recipe: str,
    model: Module,
    *options: str,
    exchange: Exchange | None = None,
    run_dir: str | Path = "outerloop-run",
    state: State | None = None,
    gathered: bool = False,
) -> OuterLoop | Follower:
    """Return the outer loop for a model on its device. Waits for the peers of the run.

    For a model under `fully_shard`, each process is a lane. It exchanges with the processes of the other islands that
    hold the same shards, through the exchange of its lane or through a swarm. In a swarm, the first process of an
    island sends for all its lanes. The ranks of a DDP model are one peer, whose first rank sends. So are the copies of
    a shard in HSDP.

    Args:
        recipe: name of a recipe, as in `outerloop train recipe=diloco`.
        model: its trainable parameters are exchanged. If they differ at the start, all peers take over those of the
            first peer in name order. It may be compiled. If parameters are bfloat16, each round also exchanges their
            rounding errors, 2 to 3 % of the norm of one inner step.
        options: "key=value" as on the command line ("exchange.peers=4", "schedule.sync_every=30"). Options of the inner
            trainer, the data and the model have no meaning here.
        exchange: an exchange that has already joined, to use instead of the one that the options describe.
        run_dir: folder for this peer's key and the record of what it has agreed to. Each peer needs a separate one.
        state: a `state_dict` of the outer loop to resume from. The model must hold the weights of the same moment.
        gathered: exchange whole tensors between islands that are sharded differently. The first rank of each island
            holds the outer state. The other ranks get a Follower, to be attached like an outer loop. Must be True on
            all islands or on none.

    Raises:
        UserError: if an option is invalid, peers do not join, or peers resume with different weights.
    """
    settings = load.load([f"recipe={recipe}", *options])
    unwrapped = getattr(model, "_orig_mod", model)  # torch.compile prefixes the names of parameters
    refuse_single_process_options(settings, num_processes(unwrapped))
    build.limit_payloads(settings, unwrapped)
    if gathered:
        island = Gathered(unwrapped, RankGroup(process_group(unwrapped)), state_device=build.state_device(settings))
        if not island.ranks.is_leader:
            return follower_loop(island)
        return leader_loop(settings, island, unwrapped, exchange, Path(run_dir), state)
    replicas, lanes = replica_group(unwrapped), num_shards(unwrapped)
    if exchange is None and lanes > 1 and settings.workers_as == "ranks":
        raise UserError(
            f"the model is cut into {lanes} shards, each exchanged in its own lane: pass"
            " exchange=outerloop.Distributed(group=<the processes with the same shards, one from each island>),"
            " or set exchange=swarm_gather"
        )

    def join_own() -> Exchange:
        return join_exchange(settings, Path(run_dir), state, leads_others=replicas is not None, lanes=lanes)

    def join() -> Exchange:
        return exchange or (
            ShardedIsland.joining(join_own, ranks=RankGroup(shard_group(unwrapped))) if lanes > 1 else join_own()
        )

    return start_loop(
        settings, unwrapped, ReplicatedIsland.joining(join, ranks=RankGroup(replicas)) if replicas else join(), state
    )


def refuse_single_process_options(settings: Any, processes: int) -> None:
    """Check that no option is set that a model of several processes does not support. Raises UserError if one is."""
    for option, (is_set, instead) in single_process_options(settings).items():
        if is_set and processes > 1:
            raise UserError(f"{option} is for a model of one process, and {processes} hold this one: set {instead}")


def leader_loop(
    settings: Any, island: Gathered, model: Module, exchange: Exchange | None, run_dir: Path, state: State | None
) -> OuterLoop:
    """Return the outer loop on the leader of a gathered island. Meanwhile the other ranks serve the leader."""
    with island.followers_serving():
        exchange = exchange or join_exchange(settings, run_dir, state, leads_others=True)
        return start_loop(settings, model, exchange, state, island)


def follower_loop(island: Gathered) -> Follower:
    """Return the follower on another rank of a gathered island, once its leader has started."""
    follower = Follower(island)
    follower.serve()
    return follower


def start_loop(
    settings: Any, model: Module, exchange: Exchange, state: State | None, island: Island | None = None
) -> OuterLoop:
    """Return the outer loop for a model, once all peers have started with equal models."""
    try:
        outer = build.make_outer_loop(settings, model, exchange, rounds=None, island=island)
        if state:
            outer.load_state_dict(state)
        start_together(outer, build.training_settings(settings))
    except BaseException:
        exchange.abort()
        raise
    return outer


def join_exchange(settings: Any, run_dir: Path, state: State | None, *, leads_others: bool, lanes: int = 1) -> Exchange:
    """Return the exchange of these settings, once all peers have joined.

    A peer of a network keeps `run_dir` locked until it has left.

    `state`: the state that this peer resumes from. `leads_others`: this process also sends for processes that have no
    exchange. `lanes`: number of shards in its messages.
    """
    if leads_others and settings.workers_as == "ranks":
        raise UserError(
            "this exchange is between all processes, and the first rank of an island sends for the others: pass"
            " exchange=outerloop.Distributed(group=<the first processes of all islands>)"
        )
    if settings.workers_as == "threads":
        raise UserError(f"{settings.exchange._target_} is for workers of one process: set exchange=swarm_gather")
    if settings.workers_as == "ranks":
        return build.make(settings.exchange)
    run_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as resources:
        resources.callback(run_directory.unlock, run_directory.lock_directory(run_dir))
        exchange = build.make_peer_exchange(settings, run_dir, initial_peers=build.initial_peers(settings), lanes=lanes)
        if isinstance(exchange, NetworkPeer):
            exchange.on_close(resources.pop_all().close)
    try:
        if isinstance(exchange, NetworkPeer) and not build.initial_peers(settings):
            logger.warning("others join with 'exchange.initial_peers=[%s]'", exchange.address[0])
        exchange.join(
            build.next_launch(build.make_schedule(settings, lambda: state), state["inner_step"] if state else 0)
        )
    except BaseException:
        exchange.abort()
        raise
    return exchange
