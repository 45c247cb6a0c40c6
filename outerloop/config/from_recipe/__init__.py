"""Create a recipe's outer loop for the user's own model and training loop, with the options of `outerloop train`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from omegaconf import DictConfig
from torch import distributed as dist
from torch.nn import Module

from outerloop.config import build, load, part_checks, shared_settings
from outerloop.config.from_recipe.arguments import address_list, check_arguments, check_connection, load_settings
from outerloop.config.from_recipe.islands import join_as_one_peer, refuse_shards_over_ranks, start_on_leader
from outerloop.config.from_recipe.join import State, create_and_join
from outerloop.config.island_checks import refuse_single_process_options
from outerloop.config.option_mapping import applicable_options, refuse_inapplicable, to_overrides
from outerloop.config.peer_check import start_together
from outerloop.config.rank_layout import mesh_group
from outerloop.core.outer_loop import OuterLoop
from outerloop.protocols import Exchange
from outerloop.replica.gathered import Follower, Gathered
from outerloop.replica.island import Island
from outerloop.replica.parameter_checks import refuse_meta
from outerloop.replica.rank_group import RankGroup
from outerloop.replica.sharding import (
    num_processes,
    num_shards,
    process_group,
    replica_group,
    shard_group,
    unwrap_forward,
)
from outerloop.state.part_states import check_state

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh  # imported only for type checkers: the import takes a second

logger = logging.getLogger(__name__)


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
        state: `state_dict` of an outer loop to resume from, or the result of `resharding.load_state`. The model must
            hold the weights of the same inner step. In a gathered island, only the first rank reads its state.
        gathered: exchange full tensors, so that islands may be sharded differently. The first rank of each island holds
            the outer state. The other ranks get a Follower, which is attached in the same way as an outer loop. Must be
            equal on all islands.
        steps: number of inner steps after which your loop ends, `while outer.inner_step < steps`. A peer that missed
            rounds then never launches one that the others do not take part in. Not used with schedule=every_seconds,
            whose inner steps are units of time. With recipe=ddp and recipe=demo, it also sets `rounds`, after which the
            learning rate of the method has its final value, unless an option sets `rounds`.

    Raises:
        UserError: if an argument or option is invalid, if peers do not join, or if peers resume with different weights.
    """
    check_arguments(recipe, model, overrides, steps)
    check_connection(exchange, mesh, dim, replicas)
    if state is not None and not gathered:
        check_state(state)
    addresses = address_list(initial_peers)
    short = {"exchange.peers": peers, "schedule.sync_every": sync_every, "exchange.initial_peers": addresses or None}
    given = {key: value for key, value in short.items() if value is not None}
    typed = [*overrides, *to_overrides(options), *to_overrides(given)]
    group = None if mesh is None else mesh_group(mesh, dim)
    settings = load_settings(recipe, typed, over_group=group is not None, steps=steps)
    refuse_inapplicable(
        typed, applicable_options(settings, has_exchange=exchange is not None), "your own training loop"
    )
    model = unwrap_forward(model)
    replicas = replicas or replica_group(model)
    refuse_single_process_options(settings, max(num_processes(model), dist.get_world_size(replicas) if replicas else 1))
    device = build.state_device(settings)
    island = (
        Gathered(model, RankGroup(process_group(model)), state_device=device)
        if gathered
        else Island(model, state_device=device)
    )
    refuse_meta(island.params)
    part_checks.limit_payloads(settings, model)
    shards = num_shards(model)

    def join(*, leads_others: bool, lanes: int = 1) -> Exchange:
        return exchange or create_and_join(
            settings, Path(run_dir), state, leads_others=leads_others, lanes=lanes, group=group
        )

    if isinstance(island, Gathered):

        def start() -> OuterLoop:
            if state is not None:
                check_state(state)
            return start_loop(settings, model, island, join(leads_others=True), state, steps)

        return start_on_leader(island, model, start)
    together = exchange is None and group is None and shards > 1
    if together:
        refuse_shards_over_ranks(settings, shards)
    joined = join_as_one_peer(
        partial(join, leads_others=replicas is not None, lanes=shards),
        shards=shard_group(model) if together else None,
        copies=replicas,
    )
    return start_loop(settings, model, island, joined, state, steps)


def start_loop(
    settings: Any, model: Module, island: Island, exchange: Exchange, state: State | None, steps: int | None
) -> OuterLoop:
    """Create the outer loop for a model, and start together with the other peers. Aborts the exchange on any error."""
    try:
        outer = build.make_outer_loop(settings, model, exchange, rounds=None, steps=steps, island=island)
        inner_optimizer = load.inner_optimizer(settings)
        outer.recipe, outer.inner_optimizer = settings.recipe, inner_optimizer._target_ if inner_optimizer else ""
        if inner_optimizer is None:
            outer.warnings.append(
                f"recipe={settings.recipe} changes the weights itself, with the settings of its method: the optimizer"
                " given to attach and its learning-rate schedule have no effect, and the method's schedule takes"
                f" rounds={settings.rounds} steps"
            )
        if state is not None:
            outer.load_state_dict(state)
        start_together(outer, shared_settings.training_settings(settings))
        for warning in outer.warnings:
            logger.warning("%s", warning)
    except BaseException:
        exchange.abort()
        raise
    return outer
