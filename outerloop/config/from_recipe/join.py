"""Join the exchange that the settings of `from_recipe` describe."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import distributed as dist

from outerloop.config import build, instantiate, run_directory
from outerloop.exchange.network_peer import NetworkPeer
from outerloop.protocols import Exchange
from outerloop.types import UserError

logger = logging.getLogger(__name__)
State = dict[str, Any]


def create_and_join(
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
        exchange.join(build.first_round(settings, lambda: state, 0 if state is None else state["inner_step"]))
    except BaseException:
        exchange.abort()
        raise
    return exchange
