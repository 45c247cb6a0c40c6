"""Create a recipe's outer loop for the user's own model and training loop, with the options of `outerloop train`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from omegaconf import DictConfig
from torch import distributed as dist
from torch.nn import Module

from outerloop.config import build, instantiate, load, part_checks, run_directory, shared_settings
from outerloop.config.island_checks import refuse_single_process_options
from outerloop.config.option_mapping import applicable_options, refuse_inapplicable, to_overrides
from outerloop.config.peer_check import start_together
from outerloop.config.rank_layout import mesh_group
from outerloop.core.outer_loop import OuterLoop
from outerloop.exchange.island_replicated import ReplicatedIsland
from outerloop.exchange.island_sharded import ShardedIsland
from outerloop.exchange.network_peer import NetworkPeer
from outerloop.protocols import Exchange
from outerloop.replica.gathered import Follower, Gathered
from outerloop.replica.island import Island
from outerloop.replica.rank_group import RankGroup
from outerloop.replica.sharding import (
    num_processes,
    num_shards,
    process_group,
    replica_group,
    shard_group,
    unwrap_forward,
)
from outerloop.types import UserError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh  # imported only for type checkers: the import takes a second

logger = logging.getLogger(__name__)
FLATTENED = ("FullyShardedDataParallel", "DeepSpeedEngine")
"""Class names of wrappers that replace a model's parameters with slices of flattened parameters."""
State = dict[str, Any]


class RecipeArguments(TypedDict, total=False):
    """Keyword arguments of `from_recipe` that the Lightning and Hugging Face callbacks also accept."""

    options: Mapping[str, Any] | DictConfig | None
    peers: int | None
    sync_every: int | None
    initial_peers: str | Sequence[str]
    exchange: Exchange | None
    mesh: DeviceMesh | None
    dim: str | None
    replicas: dist.ProcessGroup | None
    run_dir: str | Path
    state: State | None


@overload
def from_recipe(
    recipe: str,
    model: Module,
    *overrides: str,
    gathered: Literal[False] = False,
    steps: int | None = None,
    **arguments: Unpack[RecipeArguments],
) -> OuterLoop: ...


@overload
def from_recipe(
    recipe: str,
    model: Module,
    *overrides: str,
    gathered: bool,
    steps: int | None = None,
    **arguments: Unpack[RecipeArguments],
) -> OuterLoop | Follower: ...


def from_recipe(
    recipe: str,
    model: Module,
    *overrides: str,
    options: Mapping[str, Any] | DictConfig | None = None,
    peers: int | None = None,
    sync_every: int | None = None,
    initial_peers: str | Sequence[str] = (),
    exchange: Exchange | None = None,
    mesh: DeviceMesh | None = None,
    dim: str | None = None,
    replicas: dist.ProcessGroup | None = None,
    run_dir: str | Path = "outerloop-run",
    state: State | None = None,
    gathered: bool = False,
    steps: int | None = None,
) -> OuterLoop | Follower:
    """Wait for the run's peers to join, and return the recipe's outer loop for a model.

    An island is a group of processes that hold one model together and act as one peer. If the model is under
    `fully_shard`, each process exchanges messages with the processes that hold the same shards in the other islands,
    through `mesh`, `exchange` or a swarm. In a swarm, the first process of an island sends the messages of all its
    processes. The ranks of a DDP model are one peer, and only the first of them sends. The same holds for the ranks
    that hold copies of one shard in HSDP.

    Args:
        recipe: name of a recipe, as in `outerloop train recipe=diloco`.
        model: the model whose trainable parameters are exchanged, on its training device. If the parameters differ
            between peers when a run starts, all peers load the most common ones (in a tie, those of the first peer in
            name order); gossip leaves them different. The model may be compiled, or wrapped by DistributedDataParallel
            or Lightning Fabric. If parameters are bfloat16, their rounding errors are part of each pseudo-gradient; the
            norm of these errors is 2 to 3 % of the norm of one inner step.
        overrides: options as on the command line: "exchange.peers=4", "schedule.sync_every=30".
        options: options as a nested or flat mapping, {"exchange.port": 4242, "compress": "int8"}, or as a DictConfig.
            Options of the inner trainer, the data and the model are rejected, because your program provides these.
        peers: number of peers that must join before the run starts; sets exchange.peers.
        sync_every: H, the number of inner steps per round; sets schedule.sync_every.
        initial_peers: one or more addresses of running peers; sets exchange.initial_peers. Every peer logs its address.
            Without initial peers, a peer that restarts with the same `run_dir` dials the peers that it had met.
        exchange: an exchange that has already joined. It replaces the exchange that the options describe.
        mesh, dim: exchange messages over torch.distributed among the processes along dimension `dim` of this
            DeviceMesh: mesh=mesh, dim="islands". A one-dimensional mesh needs no `dim`.
        replicas: process group of the ranks that hold copies of this model and average their gradients. They are one
            peer, and the first of them sends. Needed only if the model's wrapper does not provide this group.
        run_dir: folder for this peer's key and the record of its votes. Each peer needs a separate folder.
        state: `state_dict` of an outer loop to resume from. The model must hold the weights of the same inner step.
        gathered: exchange full tensors, so that islands may be sharded differently. The first rank of each island holds
            the outer state. The other ranks get a Follower, which is attached in the same way as an outer loop. Must be
            equal on all islands.
        steps: number of inner steps after which your loop ends, `while outer.inner_step < steps`. A peer that missed
            rounds then never launches one that the others do not take part in. Not used with schedule=every_seconds,
            whose inner steps are units of time.

    Raises:
        UserError: if an argument or option is invalid, if peers do not join, or if peers resume with different weights.
    """
    check_arguments(recipe, model, overrides, exchange)
    addresses = [initial_peers] if isinstance(initial_peers, str) else [*initial_peers]
    short = {"exchange.peers": peers, "schedule.sync_every": sync_every, "exchange.initial_peers": addresses or None}
    given = {key: value for key, value in short.items() if value is not None}
    typed = [*overrides, *to_overrides(options), *to_overrides(given)]
    if mesh is not None and exchange is not None:
        raise UserError("mesh= and exchange= are both set, and each selects an exchange: pass only one of them")
    group = None if mesh is None else mesh_group(mesh, dim)
    settings = load_settings(recipe, typed, over_group=group is not None)
    refuse_inapplicable(
        typed, applicable_options(settings, has_exchange=exchange is not None), "your own training loop"
    )
    model = unwrap_forward(model)
    replicas = replicas or replica_group(model)
    refuse_single_process_options(settings, max(num_processes(model), dist.get_world_size(replicas) if replicas else 1))
    part_checks.limit_payloads(settings, model)
    if gathered:
        island = Gathered(model, RankGroup(process_group(model)), state_device=build.state_device(settings))
        if not island.ranks.is_leader:
            return follower_loop(island)
        return leader_loop(settings, island, model, exchange, Path(run_dir), state, group, steps)
    lanes = num_shards(model)
    if exchange is None and group is None and lanes > 1 and settings.workers_as == "ranks":
        raise UserError(
            f'the model is split into {lanes} shards, which are exchanged separately: pass mesh=MESH, dim="islands", or'
            " exchange=outerloop.Distributed(group=<the processes with the same shards, one from each island>),"
            " or set exchange=swarm_gather"
        )

    def join_own() -> Exchange:
        leads_others = replicas is not None
        return join_exchange(settings, Path(run_dir), state, leads_others=leads_others, lanes=lanes, group=group)

    def join() -> Exchange:
        if exchange is not None or group is not None or lanes == 1:
            return exchange or join_own()
        return ShardedIsland.joining(join_own, ranks=RankGroup(shard_group(model)))

    joined = ReplicatedIsland.joining(join, ranks=RankGroup(replicas)) if replicas else join()
    return start_loop(settings, model, joined, state, steps)


def check_arguments(recipe: object, model: object, overrides: Sequence[object], exchange: object) -> None:
    """Check the types of arguments that are often confused. Raises UserError, which states what to pass instead."""
    if not isinstance(recipe, str) or not isinstance(model, Module):
        raise UserError(
            f"from_recipe takes the name of a recipe and a torch.nn.Module, but got a {type(recipe).__name__} and a"
            f' {type(model).__name__}: call outerloop.from_recipe("sparseloco", model)'
        )
    for override in overrides:
        if not isinstance(override, str):
            raise UserError(
                f'an option was passed as a {type(override).__name__}: pass text such as "exchange.port=4242", or a'
                ' mapping as options={"exchange.port": 4242}'
            )
    if any(type(module).__name__ in FLATTENED for module in model.modules()):
        raise UserError(
            "FullyShardedDataParallel or DeepSpeed has flattened the parameters of this model, which hides them:"
            " shard the model with torch.distributed.fsdp.fully_shard (FSDP2) instead"
        )
    if isinstance(exchange, str | Mapping | type):
        kind = exchange.__name__ if isinstance(exchange, type) else repr(exchange)
        raise UserError(
            f"exchange={kind} is not an exchange that has joined: pass an object such as"
            ' outerloop.Distributed(), or name the exchange with the option "exchange=swarm_gather"'
        )


def load_settings(recipe: str, overrides: Sequence[str], *, over_group: bool) -> DictConfig:
    """Return the validated settings of a recipe. Raises UserError if a setting is invalid.

    `over_group`: select an exchange over torch.distributed, unless the overrides set an exchange.
    """
    settings = load.load([f"recipe={recipe}", *overrides])
    if over_group and settings.workers_as != "ranks":
        kind = "distributed" if build.capabilities(settings).agrees else "distributed_gossip"
        settings = load.load([f"recipe={recipe}", f"exchange={kind}", *overrides])
    return settings


def leader_loop(
    settings: Any,
    island: Gathered,
    model: Module,
    exchange: Exchange | None,
    run_dir: Path,
    state: State | None,
    group: dist.ProcessGroup | None,
    steps: int | None,
) -> OuterLoop:
    """Create the outer loop on the leader of a gathered island, while the other ranks execute the leader's commands.

    In a gathered island, only the leader holds the outer state.
    """
    with island.followers_serving():
        exchange = exchange or join_exchange(settings, run_dir, state, leads_others=True, group=group)
        outer = start_loop(settings, model, exchange, state, steps, island)
        island.run_on_followers("move", inner_step=outer.inner_step)
    return outer


def follower_loop(island: Gathered) -> Follower:
    """Return the follower of a non-leader rank of a gathered island, once the leader has started the outer loop."""
    follower = Follower(island)
    follower.serve()
    return follower


def start_loop(
    settings: Any,
    model: Module,
    exchange: Exchange,
    state: State | None,
    steps: int | None,
    island: Island | None = None,
) -> OuterLoop:
    """Create the outer loop for a model, and start together with the other peers. Aborts the exchange on any error."""
    try:
        outer = build.make_outer_loop(settings, model, exchange, rounds=None, steps=steps, island=island)
        inner_optimizer = load.inner_optimizer(settings)
        outer.recipe, outer.inner_optimizer = settings.recipe, inner_optimizer._target_ if inner_optimizer else ""
        if state:
            outer.load_state_dict(state)
        start_together(outer, shared_settings.training_settings(settings))
    except BaseException:
        exchange.abort()
        raise
    return outer


def join_exchange(
    settings: Any,
    run_dir: Path,
    state: State | None,
    *,
    leads_others: bool,
    lanes: int = 1,
    group: dist.ProcessGroup | None = None,
) -> Exchange:
    """Create the configured exchange, and return it once all peers have joined.

    A network peer keeps `run_dir` locked until it leaves.

    `state`: outer state to resume from, if any. `leads_others`: this process also sends messages for processes without
    an exchange. `lanes`: number of shards per message. `group`: process group for an exchange over torch.distributed.
    """
    if group is not None:
        return instantiate.make(settings.exchange, group=group)
    if leads_others and settings.workers_as == "ranks":
        raise UserError(
            "this exchange connects all processes, but only the first rank of each island sends messages: pass"
            ' mesh=MESH, dim="islands", or exchange=outerloop.Distributed(group=<the first processes of all islands>)'
        )
    if settings.workers_as == "threads":
        raise UserError(
            f"{settings.exchange._target_} connects threads of one process: set exchange=swarm_gather, or call"
            " outerloop.simulate"
        )
    if settings.workers_as == "ranks":
        return instantiate.make(settings.exchange)
    run_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as resources:
        resources.callback(run_directory.unlock, run_directory.lock_directory(run_dir))
        peers = build.peers_to_dial(settings, run_dir)
        exchange = build.make_peer_exchange(settings, run_dir, initial_peers=peers, lanes=lanes)
        if isinstance(exchange, NetworkPeer):
            exchange.on_close(resources.pop_all().close)
    try:
        if isinstance(exchange, NetworkPeer):
            logger.warning("others join with 'exchange.initial_peers=[%s]'", exchange.address[0])
        exchange.join(build.first_round(settings, lambda: state, state["inner_step"] if state else 0))
    except BaseException:
        exchange.abort()
        raise
    return exchange
