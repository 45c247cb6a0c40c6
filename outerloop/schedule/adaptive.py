"""Exchange the whole model every H inner steps, where H depends on how well the peers' payloads agree.

    ρ > ρ_high:  H ← min(H_max, H + max(1, ⌊H / 4⌋))       peers move in the same direction: fewer rounds are needed
    ρ < ρ_low:   H ← max(H_min, H − max(1, ⌊H / 4⌋))       peers have drifted apart: more rounds are needed
    round r + 1 launches H steps after round r

ρ is the agreement of the payloads of round r (aggregate/similarity.py). It is based on the gradient diversity of Yin et
al. (arXiv 1706.05699): workers that step in the same direction do redundant work, and steps that have nothing in common
mostly cancel in the mean. AdaComm (arXiv 1810.08313) also changes H during a run, but based on the loss, which differs
between peers. ρ depends only on the payloads of the round, so all peers compute the same H independently.

The state consists of the last landed round, the step after which that round launched, and H.
"""

from __future__ import annotations

from typing import Any

from outerloop.schedule.every_h import EveryH
from outerloop.types import Round, UserError

LARGEST = 1 << 40
"""Upper limit on round and step numbers, higher than any run reaches."""


class Adaptive(EveryH):
    """A schedule with one fragment, the whole model, and an adaptive H.

    Args:
        sync_every: initial H, sync_min .. sync_max.
        sync_min: H_min, more than `delay`.
        sync_max: H_max.
        low, high: ρ_low and ρ_high, -1 .. 1.
        delay: τ, inner steps between launch and landing.
        early: as in `EveryH`.

    Raises:
        UserError: if a setting is out of range.
    """

    def __init__(
        self,
        *,
        sync_every: int,
        sync_min: int,
        sync_max: int,
        low: float,
        high: float,
        delay: int = 0,
        early: bool = False,
    ) -> None:
        super().__init__(sync_every=sync_every, delay=delay, early=early)
        if not delay < sync_min <= sync_every <= sync_max:
            fits, less = (delay + 1, "") if delay < sync_every else (sync_every, f" schedule.delay={sync_every - 1}")
            raise UserError(
                f"schedule.sync_every={sync_every} must be within sync_min={sync_min} .. sync_max={sync_max}, and"
                f" sync_min must be more than delay={delay}: set schedule.sync_min={fits}"
                f" schedule.sync_max={sync_every}{less}"
            )
        if not -1 <= low <= high <= 1:
            raise UserError(
                f"schedule.low={low} and schedule.high={high} must be within -1 .. 1, and low at most high:"
                " set schedule.low=0.2 schedule.high=0.5"
            )
        self.sync_min, self.sync_max, self.low, self.high = sync_min, sync_max, low, high
        self.landed, self.left_after = -1, 0

    def rounds_at(self, step: int) -> tuple[Round, ...]:
        """Return the round that launches after this step, if any, but no round before the last landed one."""
        rounds, rest = divmod(step - self.left_after, self.sync_every)
        number = self.landed + rounds
        return (Round(number),) if not rest and number >= max(0, self.landed) else ()

    def inner_steps(self, rounds: int) -> int:
        """Return the number of inner steps until the last of `rounds` rounds lands, if H stays the same."""
        return self.left_after + (rounds - 1 - self.landed) * self.sync_every + self.delay

    def observe(self, round: Round, agreement: float | None) -> str:
        """Adapt H to the agreement of a landed round's payloads; None leaves H unchanged.

        Return a log line about the change, or "" if H is unchanged.
        """
        before = self.sync_every
        self.left_after += (round.number - self.landed) * before
        self.landed = round.number
        self.sync_every = self.next_h(agreement)
        if self.sync_every == before:
            return ""
        border = f"above {self.high:g}" if self.sync_every > before else f"below {self.low:g}"
        return (
            f"schedule: H {before} -> {self.sync_every} inner steps,"
            f" because the agreement of the payloads is {agreement:.3g}, {border}"
        )

    def next_h(self, agreement: float | None) -> int:
        """Return H for the next round, given the agreement ρ of the payloads (None: unchanged)."""
        change = max(1, self.sync_every // 4)
        if agreement is not None and agreement > self.high:
            return min(self.sync_max, self.sync_every + change)
        if agreement is not None and agreement < self.low:
            return max(self.sync_min, self.sync_every - change)
        return self.sync_every

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which is the same on all peers that have landed the same rounds."""
        return {"sync_every": self.sync_every, "landed": self.landed, "left_after": self.left_after}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`. Raises ValueError if a value is out of range."""
        allowed = {
            "sync_every": (self.sync_min, self.sync_max),
            "landed": (-1, LARGEST),
            "left_after": (0, LARGEST),
        }
        for key, (lowest, highest) in allowed.items():
            if type(state[key]) is not int or not lowest <= state[key] <= highest:
                raise ValueError(f"the schedule's {key} must be {lowest} to {highest}, received {state[key]!r:.40}")
        self.sync_every, self.landed, self.left_after = (state[key] for key in allowed)
