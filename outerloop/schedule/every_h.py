"""Exchange the whole model every H inner steps (DiLoCo, arXiv 2311.08105).

With a delay τ, the round launched after step (r + 1) H lands τ steps later, so the inner loop does not wait for the
network. With `early`, τ is the maximum delay: each peer lands a round as soon as the payloads of that round have
arrived. With τ = H, each round lands when the next one launches, which is useful only with eager updates
(arXiv 2502.12996).
"""

from __future__ import annotations

from collections.abc import Sequence

from outerloop.types import DueRounds, Round, UserError


class EveryH:
    """A schedule with one fragment, the whole model, and a round every H inner steps.

    Args:
        sync_every: H, inner steps between two rounds. DiLoCo: 500 (works from 30 to 1000); SparseLoCo: 15 .. 250.
        delay: τ, inner steps between launch and landing, 0 .. H.
        early: land a round as soon as its payloads have arrived, after τ steps at the latest; requires 0 < τ < H.

    Raises:
        UserError: if a setting is out of range.
    """

    fragments = 1
    step_s = 0.0

    def __init__(self, *, sync_every: int, delay: int = 0, early: bool = False) -> None:
        if sync_every < 1:
            raise UserError(f"schedule.sync_every={sync_every} must be at least 1: set schedule.sync_every=15")
        if not 0 <= delay <= sync_every:
            raise UserError(
                f"schedule.delay={delay} must be between 0 and sync_every={sync_every}: set schedule.delay=0"
            )
        if early and not 0 < delay < sync_every:
            fits = f"schedule.delay={sync_every // 2}, or " if sync_every > 1 else ""
            raise UserError(
                f"schedule.early=true requires schedule.delay above 0 and below sync_every={sync_every}, not"
                f" {delay}: set {fits}schedule.early=false"
            )
        self.sync_every, self.delay, self.early = sync_every, delay, early

    def due(self, inner_step: int) -> DueRounds:
        """Return the rounds due after this step. Round r launches after step (r + 1) H and lands τ steps later."""
        return DueRounds(launch=self.rounds_at(inner_step), land=self.rounds_at(inner_step - self.delay))

    def rounds_at(self, step: int) -> tuple[Round, ...]:
        """Return the round that launches after this step, if any."""
        if step < self.sync_every or step % self.sync_every:
            return ()
        return (Round(number=step // self.sync_every - 1),)

    def fragment(self, index: int, names: Sequence[str]) -> list[str]:
        """Return all parameters, because there is only one fragment."""
        return list(names)

    def inner_steps(self, rounds: int) -> int:
        """Return the number of inner steps until the last of `rounds` rounds lands: rounds · H + τ."""
        return rounds * self.sync_every + self.delay
