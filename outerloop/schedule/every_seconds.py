"""Launch a round every S seconds of wall-clock time, so that peers of different speeds exchange at the same time.

    round r launches after the inner step in which S (H − τ) / H seconds have passed since round r − 1 landed here

S seconds count as H steps of S / H seconds each, however long a peer's own inner steps take. A round lands τ counted
steps after its launch, so rounds that land on time launch every S seconds. Delays, learning rates and checkpoints use
the counted steps. A round lands on all peers at the same time, and each peer then restarts its clock,
so clocks need not agree. Peers contribute different numbers of samples to a round. With aggregate=weighted, each
contribution is weighted by its number of samples.
"""

from __future__ import annotations

import math

from outerloop.schedule.every_h import EveryH
from outerloop.types import UserError


class EverySeconds(EveryH):
    """A schedule with one fragment, the whole model, driven by wall-clock time.

    Args:
        seconds: S. An inner step should take much less time than S, because the other peers wait until it ends.
        sync_every: H, the number of counted steps into which S is divided.
        delay: τ, counted steps between launch and landing, 0 .. H.

    Raises:
        UserError: if a setting is out of range.
    """

    def __init__(self, *, seconds: float, sync_every: int, delay: int = 0) -> None:
        super().__init__(sync_every=sync_every, delay=delay)
        if not 0 < seconds < math.inf:
            raise UserError(f"schedule.seconds={seconds} must be more than 0: set schedule.seconds=60")
        self.step_s = seconds / sync_every
