"""The outer loop of a recipe around a model of one's own; options are those of `outerloop train`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import IO, Any, cast

from torch.nn import Module

from outerloop.commands import build, config, rundir
from outerloop.exchange.led import Led
from outerloop.gathered import Follower, Gathered
from outerloop.island import Island, copies_of, group_of
from outerloop.loop import OuterLoop
from outerloop.ranks import Ranks
from outerloop.types import Contribution, Exchange, UserError

logger = logging.getLogger(__name__)
MOST_BYTES = 1 << 22
"""Of what a peer tells of its model: some 40,000 parameters."""
HELD: list[IO[str]] = []
"""Run directories that are this process's, while it lives."""


def from_recipe(
    recipe: str,
    model: Module,
    *options: str,
    exchange: Exchange | None = None,
    run_dir: str | Path = "outerloop-run",
    gathered: bool = False,
) -> OuterLoop | Follower:
    """The outer loop around a model on its device. Waits for the peers of the run.

    Of a model under `fully_shard` every process is a lane, which meets the one with the same shards of the other
    islands: the exchange is that of the lane. The ranks of a DDP model, and the copies of a shard in HSDP, are one
    peer, whose first rank sends.

    Args:
        recipe: name of a recipe, as in `outerloop train recipe=diloco`.
        model: its trainable parameters are exchanged; all peers begin with equal ones.
        options: "key=value" as on the command line ("exchange.peers=4", "schedule.sync_every=30"); those of the inner
            trainer, the data and the model have no meaning here.
        exchange: one that has been joined, in place of that of the options.
        run_dir: where this peer's key and what it has agreed on are kept; one a peer.
        gathered: islands that are cut differently meet as whole tensors, with the outer state at the first rank of
            each; its other ranks get a Follower, to be attached like an outer loop. True on all islands or on none.

    Raises:
        UserError: for options that are none, peers that do not come, or peers that begin with other weights.
    """
    settings = config.load([f"recipe={recipe}", *options])
    if gathered:
        island = Gathered(model, Ranks(group_of(model)))
        return led(settings, island, model, exchange, Path(run_dir)) if island.ranks.leads else following(island)
    copies = Ranks(group) if (group := copies_of(model)) else None
    if exchange is None and (copies is None or copies.leads):
        exchange = joined(settings, Path(run_dir))
    if copies is not None:
        exchange = cast(Exchange, Led(exchange, ranks=copies))
    return begun(settings, model, exchange)


def led(settings: Any, island: Gathered, model: Module, exchange: Exchange | None, run_dir: Path) -> OuterLoop:
    """The outer loop at the leader of a gathered island; the other ranks serve it meanwhile."""
    try:
        outer = begun(settings, model, exchange or joined(settings, run_dir), island)
    except UserError as error:
        island.stop(str(error))
        raise
    island.rest()
    return outer


def following(island: Gathered) -> Follower:
    """Another rank of a gathered island, once its leader has begun."""
    follower = Follower(island)
    follower.serve()
    return follower


def begun(settings: Any, model: Module, exchange: Exchange | None, island: Island | None = None) -> OuterLoop:
    """The outer loop around a model, once all peers have begun with equal ones."""
    assert exchange is not None
    outer = build.outer_of(settings, model, exchange, rounds=None, island=island)
    try:
        begin_together(outer)
    except BaseException:
        exchange.abort()
        raise
    return outer


def joined(settings: Any, run_dir: Path) -> Exchange:
    """The exchange of these settings, once all peers are there."""
    if settings.workers_as == "threads":
        raise UserError(f"{settings.exchange._target_} is for workers of one process: type exchange=swarm_gather")
    run_dir.mkdir(parents=True, exist_ok=True)
    HELD.append(rundir.locked(run_dir))
    exchange = build.make(
        settings.exchange,
        run=settings.exchange.run or "default",
        identity_path=str(rundir.identity_file(run_dir, 0)),
        fingerprint=build.fingerprint(settings),
    )
    try:
        if not settings.exchange.initial_peers:
            logger.warning("others join with 'exchange.initial_peers=[%s]'", exchange.address[0])
        exchange.join()
    except BaseException:
        exchange.abort()
        raise
    return exchange


def begin_together(outer: OuterLoop) -> None:
    """Who comes late takes over the state of the run; else all begin with equal weights. Raises UserError."""
    if outer.exchange.came_late:
        outer.find_others()
    elif outer.exchange.lockstep:
        own = {"shapes": outer.island.layouts(), "slow": f"{outer.slow_hash:016x}" if outer.shared else ""}
        for one in outer.meet(json.dumps(own).encode()):
            refuse_another(own, told_by(one), one.peer)


def told_by(one: Contribution) -> Any:
    """What a peer tells of its model. Raises UserError when that is none of it."""
    try:
        told = json.loads(one.blob[:MOST_BYTES])
        return {"shapes": dict(told["shapes"]), "slow": str(told["slow"])}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{one.peer} does not tell what its model is; start the same program everywhere") from error


def refuse_another(own: Any, told: Any, peer: str) -> None:
    """Raises UserError naming the first parameter that differs from a peer's, or that the weights do."""
    ours, theirs = own["shapes"], told["shapes"]
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            here, there = (f"has shape {of[name]}" if name in of else "is not trained" for of in (ours, theirs))
            raise UserError(
                f"{name[:200]} {here} here and {str(there)[:200]} at {peer}: make the same model everywhere"
            )
    if own["slow"] != told["slow"]:
        raise UserError(
            f"{peer} begins with other weights ({told['slow'][:16]}, here {own['slow']}): set the same seed before the"
            " model is made, or load the same checkpoint everywhere"
        )
