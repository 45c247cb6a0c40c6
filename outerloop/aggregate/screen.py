"""Choose the screen of a run by what its peers send each other: steps that all take alike, or weights in pairs."""

from __future__ import annotations

from outerloop.aggregate.distance_screen import DistanceScreen
from outerloop.aggregate.norm_screen import NormScreen
from outerloop.protocols import Exchange, OuterMethod
from outerloop.types import UserError

KINDS = ("auto", "median", "none")


def screen_of(clip: str, *, method: OuterMethod, exchange: Exchange, eager: bool) -> NormScreen:
    """Return the screen of a run; "auto": on where peers are others' machines, which need not be waited for.

    Raises UserError for another kind, and for "median" where contributions are no steps that all peers take alike.
    """
    if clip not in KINDS:
        raise UserError(f"clip={clip} is not one of {', '.join(KINDS)}: type clip=auto")
    alike = method.shared and exchange.agrees and not eager
    if clip == "median" and not alike:
        raise UserError(
            "clip=median needs peers that take the same outer step, and this method, this exchange or eager=true gives"
            " each its own: type clip=none"
        )
    on = clip == "auto" and not exchange.waits_for_all
    if method.sends != "differences":
        return DistanceScreen(on=on)
    return NormScreen(on=clip == "median" or (on and alike))
