"""Whether all peers begin alike: settings, shapes, step, weights; what differs is named, with both values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outerloop.loop import OuterLoop
from outerloop.types import Contribution, UserError

Settings = Mapping[str, Any]
MOST_BYTES = 1 << 22
"""Of what a peer tells of its model: some 40,000 parameters."""
AXES = ("recipe", "method", "compress", "feedback", "aggregate", "schedule")
OUTER = (*AXES, "merge_local", "buffers", "eager", "clip", "state_dtype", "seed")
"""Options of the outer loop: those that must be equal everywhere, whatever trains the model."""


def begin_together(outer: OuterLoop, settings: Settings) -> None:
    """Who comes late takes over the state of the run; else all begin with equal settings, rounds and weights.

    Raises UserError.
    """
    if outer.exchange.came_late:
        outer.find_others()
    elif outer.exchange.lockstep:
        own = {
            "settings": {key: value for key, value in settings.items() if key.split(".")[0] in OUTER},
            "shapes": outer.island.layouts(),
            "rounds": outer.under_way,
            "slow": f"{outer.slow_hash:016x}" if outer.shared else "",
        }
        for one in outer.meet(json.dumps(own).encode()):
            refuse_another(own, told_by(one), one.peer)


def told_by(one: Contribution) -> Any:
    """What a peer tells of its model. Raises UserError when that is none of it."""
    try:
        told = json.loads(bytes(one.blob[:MOST_BYTES]))
        rounds, slow = [int(number) for number in told["rounds"]], str(told["slow"])
        return {"settings": dict(told["settings"]), "shapes": dict(told["shapes"]), "rounds": rounds, "slow": slow}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{one.peer} does not tell what its model is; start the same program everywhere") from error


def refuse_another(own: Any, told: Any, peer: str) -> None:
    """Raises UserError naming the first setting or parameter that differs from a peer's, else the rounds or weights."""
    refuse_different(own["settings"], told["settings"], peer)
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
        raise UserError(f"{key[:200]} is {here} here and {there} at {peer}: type the same options everywhere")
