"""Choose the screen of a run, which depends on what its peers exchange: pseudo-gradients, or weights in pairs."""

from __future__ import annotations

from outerloop.aggregate.distance_screen import DistanceScreen
from outerloop.aggregate.norm_screen import NormScreen
from outerloop.protocols import OuterMethod
from outerloop.types import Capabilities, UserError

KINDS = ("auto", "median", "none")


def screen_of(clip: str, *, method: OuterMethod, exchange: Capabilities, eager: bool) -> NormScreen:
    """Return the screen of a run, which clips and refuses contributions that are far longer than the others.

    clip: "median" turns screening of pseudo-gradients on, and "none" turns all screening off. "auto" turns screening on
        if the exchange does not wait for all peers, because such an exchange may include other people's machines.
        Pseudo-gradients are screened only if all peers take the same outer step.

    Raises UserError if `clip` has another value, or is "median" although peers do not take the same outer step.
    """
    if clip not in KINDS:
        raise UserError(f"clip={clip} is not one of {', '.join(KINDS)}: set clip=auto")
    same_step = method.shared and exchange.agrees and not eager
    if clip == "median" and not same_step:
        raise UserError(
            "clip=median needs peers that take the same outer step, but with this method, this exchange or eager=true"
            " each peer takes a different one: set clip=auto"
        )
    on = clip == "auto" and not exchange.waits_for_all
    if method.sends != "differences":
        return DistanceScreen(on=on)
    return NormScreen(on=clip == "median" or (on and same_step))
