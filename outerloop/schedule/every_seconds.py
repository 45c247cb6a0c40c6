"""A round every S seconds of wall clock: fast and slow peers meet at the same time, each with what it has learned.

    round r leaves after the inner step that passes S seconds since round r - 1 landed here

The seconds are counted as H steps of S / H each, whatever a peer's own inner steps take: delay, learning rates and
checkpoints go by these. A round lands at all peers together, and there each starts its clock anew, so clocks need not
agree. Peers then differ in the samples behind a round: aggregate=weighted goes by them.
"""

from __future__ import annotations

import math

from outerloop.schedule.every_h import EveryH
from outerloop.types import UserError


class EverySeconds(EveryH):
    """One fragment, the whole model.

    Args:
        seconds: S. An inner step should be far shorter: the others wait for one that is under way.
        sync_every: H, counted steps that S is divided into.
        delay: τ, counted steps between launch and landing, 0 .. H.

    Raises:
        UserError: if one is out of range.
    """

    def __init__(self, *, seconds: float, sync_every: int, delay: int = 0) -> None:
        super().__init__(sync_every=sync_every, delay=delay)
        if not 0 < seconds < math.inf:
            raise UserError(f"schedule.seconds={seconds} must be more than 0: type schedule.seconds=60")
        self.step_s = seconds / sync_every
