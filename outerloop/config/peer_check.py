"""Check that peers with their own training loops start with equal settings, shapes, rounds and weights."""

from __future__ import annotations

import json
import logging
from typing import Any

from outerloop.config.option_mapping import OUTER
from outerloop.config.options.setting_differences import Settings, describe_difference
from outerloop.core.initial_state import StartPosition, join_late, report_left_out, start_from_same_weights
from outerloop.core.outer_loop import OuterLoop
from outerloop.exchange_protocols import late_joiner
from outerloop.types import Contribution, printable

logger = logging.getLogger(__name__)
MAX_BYTES = 1 << 22
"""Size limit of a peer's opening message, which describes its model; enough for about 40,000 parameter tensors."""


def start_together(outer: OuterLoop, settings: Settings) -> None:
    """Load the run's state if this peer joins late. Otherwise, start with equal settings, rounds and weights.

    A peer is left out with a warning if its opening message is malformed, or if its settings or shapes differ from
    those of the majority. initial_state.py describes how the rounds and weights become equal. If peers are not in
    lockstep, as in swarm gossip, nothing is compared. Raises UserError if the peers cannot start together.
    """
    if late_joiner(outer.exchange):
        join_late(outer)
    elif outer.exchange.info.lockstep:
        own = {
            "settings": {key: value for key, value in settings.items() if key.split(".")[0] in OUTER},
            "shapes": outer.island.layouts(),
            "standing": StartPosition.of(outer).to_map(),
        }
        openings = {
            contribution.peer: parse_opening(contribution)
            for contribution in outer.all_gather(json.dumps(own).encode())
        }
        reasons = {
            peer: peer_difference(openings[outer.exchange.peer], opening, peer) for peer, opening in openings.items()
        }
        report_left_out(outer, reasons, logger.warning)
        positions = {peer: opening["standing"] for peer, opening in openings.items() if not reasons[peer]}
        start_from_same_weights(outer, positions, logger.warning)


def parse_opening(contribution: Contribution) -> Any:
    """Parse a peer's opening message: its settings, its shapes and its position in the run (`StartPosition`).

    Return None if the message is malformed.
    """
    try:
        opening = json.loads(bytes(contribution.blob[:MAX_BYTES]))
        position = StartPosition.from_map(opening["standing"])
        return {"settings": dict(opening["settings"]), "shapes": dict(opening["shapes"]), "standing": position}
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        return None


def peer_difference(own: Any, theirs: Any, peer: str) -> str:
    """Return a message that names the first setting or parameter that differs, or an empty string if all are equal."""
    if theirs is None:
        return f"{peer} sent no valid description of its model: start the same program everywhere"
    if message := describe_difference(own["settings"], theirs["settings"], peer):
        return message
    our_shapes, their_shapes = own["shapes"], theirs["shapes"]
    for name in sorted(our_shapes.keys() | their_shapes.keys()):
        if our_shapes.get(name) != their_shapes.get(name):
            local, remote = (
                f"has shape {shapes[name]}" if name in shapes else "is not trained"
                for shapes in (our_shapes, their_shapes)
            )
            mismatch = f"{printable(name[:200])} {local} here and {printable(str(remote)[:200])} at {peer}"
            return f"{mismatch}: create the same model everywhere"
    return ""
