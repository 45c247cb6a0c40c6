"""Compute the factor of the outer learning rate from the number of earlier rounds."""

from __future__ import annotations

from outerloop.types import UserError


class ConstantThenLinear:
    """A factor that is 1 in the first rounds, then falls linearly, and stays at its final value.

    1 − (1 − floor) d, where d = (round − constant_rounds) / (end_round − constant_rounds), limited to 0 .. 1

    Both numbers of rounds are absolute, so a round's factor does not depend on how long the run will be. The factor is
    bit-identical on all machines.

    Args:
        constant_rounds: number of rounds in which the factor is 1.
        end_round: round (from 0) at which the factor reaches `floor`.
        floor: final value of the factor.

    Raises:
        UserError: if `constant_rounds` is not below `end_round`, or if `floor` is not in 0 .. 1.
    """

    def __init__(self, *, constant_rounds: int, end_round: int, floor: float) -> None:
        if not 0 <= constant_rounds < end_round:
            raise UserError(
                f"method.lr_factor.constant_rounds={constant_rounds} must be at least 0 and below"
                f" method.lr_factor.end_round={end_round}: set both, for example to 40 and 200"
            )
        if not 0 <= floor <= 1:
            raise UserError(f"method.lr_factor.floor={floor} must be 0 .. 1: set method.lr_factor.floor=1 to keep it 1")
        self.constant_rounds, self.end_round, self.floor = constant_rounds, end_round, floor

    def __call__(self, round: int) -> float:
        """Return the factor of a round, counted from 0."""
        done = (round - self.constant_rounds) / (self.end_round - self.constant_rounds)
        return 1 - (1 - self.floor) * min(1.0, max(0.0, done))
