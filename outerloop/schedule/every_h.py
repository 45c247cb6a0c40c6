"""Every H inner steps the whole model is exchanged (DiLoCo, arXiv 2311.08105).

With a delay τ a round launched after step (r + 1) H lands τ steps later: the inner loop does not wait for the network.
With `early` τ is the most: each peer lands a round once its bytes are in.
τ = H lands each round when the next one leaves, which only eager updates (arXiv 2502.12996) make sense of.
"""

from __future__ import annotations

from collections.abc import Sequence

from outerloop.types import DueRounds, Round, UserError


class EveryH:
    """One fragment, the whole model.

    Args:
        sync_every: H, inner steps between two rounds. DiLoCo: 500 (works from 30 to 1000); SparseLoCo: 15 .. 250.
        delay: τ, inner steps between launch and landing, 0 .. H.
        early: land as soon as the bytes are in, after τ steps at the latest; for 0 < τ < H.

    Raises:
        UserError: if one is out of range.
    """

    fragments = 1
    step_s = 0.0

    def __init__(self, *, sync_every: int, delay: int = 0, early: bool = False) -> None:
        if sync_every < 1:
            raise UserError(f"schedule.sync_every={sync_every} must be at least 1: type schedule.sync_every=15")
        if not 0 <= delay <= sync_every:
            raise UserError(f"schedule.delay={delay} must be 0 .. sync_every={sync_every}: type schedule.delay=0")
        if early and not 0 < delay < sync_every:
            fits = f"schedule.delay={sync_every // 2}, or " if sync_every > 1 else ""
            raise UserError(
                f"schedule.early=true with delay={delay}: a round can land early if its delay is more than 0 and below"
                f" sync_every={sync_every}: type {fits}schedule.early=false"
            )
        self.sync_every, self.delay, self.early = sync_every, delay, early

    def due(self, inner_step: int) -> DueRounds:
        """Round r leaves after inner step (r + 1) H and lands after (r + 1) H + τ."""
        return DueRounds(launch=self.rounds_at(inner_step), land=self.rounds_at(inner_step - self.delay))

    def rounds_at(self, step: int) -> tuple[Round, ...]:
        """The round that leaves after this step, if one does."""
        if step < self.sync_every or step % self.sync_every:
            return ()
        return (Round(number=step // self.sync_every - 1),)

    def fragment(self, index: int, names: Sequence[str]) -> list[str]:
        """The one fragment: every parameter."""
        return list(names)

    def inner_steps(self, rounds: int) -> int:
        """rounds · H + τ."""
        return rounds * self.sync_every + self.delay
