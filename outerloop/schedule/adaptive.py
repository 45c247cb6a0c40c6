"""The whole model every H inner steps, where H goes by how far the peers agree on what they have learned.

    ρ > ρ_high:  H ← min(H_max, H + max(1, ⌊H / 4⌋))       they go the same way: fewer rounds will do
    ρ < ρ_low:   H ← max(H_min, H − max(1, ⌊H / 4⌋))       they have drifted apart: more rounds are needed
    round r + 1 leaves H steps after round r

ρ is the agreement of the payloads of round r (aggregate/similarity.py), after Yin et al.'s gradient diversity (arXiv
1706.05699): workers that step along the same directions could as well have been one, and those whose steps have nothing
in common mostly cancel in the mean. That H should change in a run is AdaComm's (arXiv 1810.08313), which goes by the
loss; that differs from peer to peer. ρ comes of the payloads that the round is made of alone, so all peers take the
same H, and nobody has to tell it.

What was long agreed on is not kept: the last round that landed, the step after which it left, and H say all.
"""

from __future__ import annotations

from typing import Any

from outerloop.schedule.every_h import EveryH
from outerloop.types import Round, UserError

MOST = 1 << 40
"""Rounds, or inner steps: no run comes so far."""


class Adaptive(EveryH):
    """One fragment, the whole model.

    Args:
        sync_every: H at first, sync_min .. sync_max.
        sync_min: H_min, more than `delay`.
        sync_max: H_max.
        low, high: ρ_low and ρ_high, -1 .. 1.
        delay: τ, inner steps between launch and landing.
        early: as for EveryH.

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
            least, less = (delay + 1, "") if delay < sync_every else (sync_every, f" schedule.delay={sync_every - 1}")
            raise UserError(
                f"schedule.sync_every={sync_every} must be sync_min={sync_min} .. sync_max={sync_max}, and sync_min"
                f" more than delay={delay}: type schedule.sync_min={least} schedule.sync_max={sync_every}{less}"
            )
        if not -1 <= low <= high <= 1:
            raise UserError(
                f"schedule.low={low} and schedule.high={high} must be -1 .. 1 and in this order:"
                " type schedule.low=0.2 schedule.high=0.5"
            )
        self.sync_min, self.sync_max, self.low, self.high = sync_min, sync_max, low, high
        self.landed, self.left_after = -1, 0

    def rounds_at(self, step: int) -> tuple[Round, ...]:
        """The round that leaves after this step, if one does; of those before the last that landed nothing is known."""
        rounds, rest = divmod(step - self.left_after, self.sync_every)
        number = self.landed + rounds
        return (Round(number),) if not rest and number >= max(0, self.landed) else ()

    def inner_steps(self, rounds: int) -> int:
        """Those until the last landing if H stays what it is."""
        return self.left_after + (rounds - 1 - self.landed) * self.sync_every + self.delay

    def learn(self, round: Round, agreement: float | None) -> str:
        """A round has landed; `agreement` is its ρ, None if it has none. In one line what has changed and why."""
        before = self.sync_every
        self.left_after += (round.number - self.landed) * before
        self.landed = round.number
        self.sync_every = self.next_h(agreement)
        if self.sync_every == before:
            return ""
        border = f"above {self.high:g}" if self.sync_every > before else f"below {self.low:g}"
        return f"schedule: H {before} -> {self.sync_every} inner steps: payloads agree by {agreement:.3g}, {border}"

    def next_h(self, agreement: float | None) -> int:
        """See the equation above."""
        change = max(1, self.sync_every // 4)
        if agreement is not None and agreement > self.high:
            return min(self.sync_max, self.sync_every + change)
        if agreement is not None and agreement < self.low:
            return max(self.sync_min, self.sync_every - change)
        return self.sync_every

    def state_dict(self) -> dict[str, Any]:
        """Equal on all peers that have landed the same rounds."""
        return {"sync_every": self.sync_every, "landed": self.landed, "left_after": self.left_after}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned. Raises ValueError for what it never returns."""
        allowed = {"sync_every": (self.sync_min, self.sync_max), "landed": (-1, MOST), "left_after": (0, MOST)}
        for key, (least, most) in allowed.items():
            if type(state[key]) is not int or not least <= state[key] <= most:
                raise ValueError(f"the schedule's {key} is {least} to {most}; came {state[key]!r:.40}")
        self.sync_every, self.landed, self.left_after = (state[key] for key in allowed)
