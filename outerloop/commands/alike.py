"""Whether all peers of own loops begin alike: settings, shapes, rounds, weights; what differs is named."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from outerloop.beginning import Standing, begin_alike
from outerloop.loop import OuterLoop
from outerloop.types import Contribution, UserError, printable

logger = logging.getLogger(__name__)
Settings = Mapping[str, Any]
MOST_BYTES = 1 << 22
"""Of what a peer tells of its model: some 40,000 parameters."""
AXES = ("recipe", "method", "compress", "feedback", "aggregate", "schedule")
OUTER = (*AXES, "merge_local", "buffers", "eager", "clip", "state_dtype", "seed")
"""Options of the outer loop: those that must be equal everywhere, whatever trains the model."""


def begin_together(outer: OuterLoop, settings: Settings) -> None:
    """Take over the state of the run where this peer comes late; else begin with equal settings, rounds and weights.

    Weights that differ before the first inner step become those of the first peer (beginning.py). Raises UserError.
    """
    if outer.exchange.came_late:
        outer.find_others()
    elif outer.exchange.lockstep:
        own = {
            "settings": {key: value for key, value in settings.items() if key.split(".")[0] in OUTER},
            "shapes": outer.island.layouts(),
            "standing": Standing.of(outer).to_map(),
        }
        told = {one.peer: told_by(one) for one in outer.meet(json.dumps(own).encode())}
        for peer, theirs in told.items():
            refuse_another(told[outer.exchange.peer], theirs, peer)
        begin_alike(outer, {peer: theirs["standing"] for peer, theirs in told.items()}, logger.warning)


def told_by(one: Contribution) -> Any:
    """What a peer tells of its model. Raises UserError when that is none of it."""
    try:
        told = json.loads(bytes(one.blob[:MOST_BYTES]))
        standing = Standing.told(told["standing"])
        return {"settings": dict(told["settings"]), "shapes": dict(told["shapes"]), "standing": standing}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{one.peer} does not tell what its model is; start the same program everywhere") from error


def refuse_another(own: Any, told: Any, peer: str) -> None:
    """Raises UserError naming the first setting or parameter that differs from a peer's, else the rounds."""
    refuse_different(own["settings"], told["settings"], peer)
    ours, theirs = own["shapes"], told["shapes"]
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            here, there = (f"has shape {of[name]}" if name in of else "is not trained" for of in (ours, theirs))
            said = f"{printable(name[:200])} {here} here and {printable(str(there)[:200])} at {peer}"
            raise UserError(f"{said}: make the same model everywhere")
    here, there = own["standing"].rounds, told["standing"].rounds
    if here != there:
        raise UserError(
            f"{peer} goes on with rounds {printable(str(there)[:50])}, and this peer with {here}: load the checkpoint"
            " of one step everywhere"
        )


def first_difference(ours: Settings, theirs: Settings) -> str | None:
    """The key of the first setting that differs: the recipe, else an axis before what is in it, else by name."""
    keys = sorted(ours.keys() | theirs.keys(), key=lambda key: (key != "recipe", key.count("."), key))
    return next((key for key in keys if ours.get(key) != theirs.get(key)), None)


def shown(settings: Settings, key: str) -> str:
    """A setting as it is typed."""
    return json.dumps(settings.get(key)).strip('"')


def refuse_different(ours: Settings, theirs: Settings, peer: str) -> None:
    """Raises UserError naming the first setting that a peer has otherwise."""
    key = first_difference(ours, theirs)
    if key is not None:
        here, there = shown(ours, key), shown(theirs, key)[:200]
        raise UserError(
            f"{printable(key[:200])} is {here} here and {there} at {peer}: type the same options everywhere"
        )
