"""The outer loop of a recipe around a model of one's own; options are those of `outerloop train`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import IO, Any

from torch.nn import Module

from outerloop.commands import build, config, rundir
from outerloop.loop import OuterLoop
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
    state: dict[str, Any] | None = None,
) -> OuterLoop:
    """The outer loop around a model on its device. Waits for the peers of the run.

    Args:
        recipe: name of a recipe, as in `outerloop train recipe=diloco`.
        model: its trainable parameters are exchanged; all peers begin with equal ones. Compiled or not is all one.
        options: "key=value" as on the command line ("exchange.peers=4", "schedule.sync_every=30"); those of the inner
            trainer, the data and the model have no meaning here.
        exchange: one that has been joined, in place of that of the options.
        run_dir: where this peer's key and what it has agreed on are kept; one a peer.
        state: what `state_dict` of the outer loop returned, to go on from there; the model holds its weights of then.

    Raises:
        UserError: for options that are none, peers that do not come, or peers that begin with other weights.
    """
    settings = config.load([f"recipe={recipe}", *options])
    if exchange is None:
        exchange = joined(settings, Path(run_dir), inner_step=state["inner_step"] if state else 0)
    plain = getattr(model, "_orig_mod", model)  # what torch.compile wraps has names that other peers know
    outer = build.outer_of(settings, plain, exchange, rounds=None)
    try:
        if state:
            outer.load_state_dict(state)
        begin_together(outer)
    except BaseException:
        exchange.abort()
        raise
    return outer


def joined(settings: Any, run_dir: Path, *, inner_step: int) -> Exchange:
    """The exchange of these settings, once all peers are there. `inner_step`: how many this peer has taken."""
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
        exchange.join(build.next_launch(build.make(settings.schedule), inner_step))
    except BaseException:
        exchange.abort()
        raise
    return exchange


def begin_together(outer: OuterLoop) -> None:
    """Who comes late takes over the state of the run; all begin in one round and equal weights. Raises UserError."""
    if outer.exchange.came_late:
        outer.find_others()
    elif outer.exchange.lockstep:
        shapes = {name: list(x.shape) for name, x in outer.slow.items()}
        slow = f"{outer.slow_hash:016x}" if outer.shared else ""
        own = {"shapes": shapes, "rounds": outer.under_way, "slow": slow}
        for one in outer.meet(json.dumps(own).encode()):
            refuse_another(own, told_by(one), one.peer)


def told_by(one: Contribution) -> Any:
    """What a peer tells of its model. Raises UserError when that is none of it."""
    try:
        told = json.loads(one.blob[:MOST_BYTES])
        return {"shapes": dict(told["shapes"]), "rounds": [int(r) for r in told["rounds"]], "slow": str(told["slow"])}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{one.peer} does not tell what its model is; start the same program everywhere") from error


def refuse_another(own: Any, told: Any, peer: str) -> None:
    """Raises UserError naming the first parameter that differs from a peer's, or that the round or the weights do."""
    ours, theirs = own["shapes"], told["shapes"]
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            here, there = (f"has shape {of[name]}" if name in of else "is not trained" for of in (ours, theirs))
            raise UserError(
                f"{name[:200]} {here} here and {str(there)[:200]} at {peer}: make the same model everywhere"
            )
    if own["rounds"] != told["rounds"]:
        raise UserError(
            f"{peer} goes on with rounds {str(told['rounds'])[:50]}, and this peer with {own['rounds']}: load the"
            " checkpoint of one step everywhere"
        )
    if own["slow"] != told["slow"]:
        raise UserError(
            f"{peer} begins with other weights ({told['slow'][:16]}, here {own['slow']}): set the same seed before the"
            " model is made, or load the same checkpoint everywhere"
        )
