"""Convert a budget of steps or tokens into a number of rounds, so that recipes with different H do equal work.

    steps    inner steps of each worker          rounds = steps // H
    tokens   of all workers of the run together  steps = tokens // (peers · batch · accumulate · seq_len)

H is schedule.sync_every. The last round lands up to schedule.delay inner steps after the budget is spent.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from outerloop.config.instantiate import make
from outerloop.protocols import AdaptiveSchedule
from outerloop.types import UserError

BUDGETS = ("steps", "tokens")


def apply(config: DictConfig) -> None:
    """Set `rounds` to the number of rounds that fit into the budget, if there is one.

    Raises UserError if not a single round fits, or if the schedule does not determine the number of steps in a round.
    """
    steps = inner_steps(config)
    if steps is None:
        return
    schedule = make(config.schedule)
    if schedule.step_s > 0 or isinstance(schedule, AdaptiveSchedule):
        raise UserError("steps and tokens need a schedule with a fixed H: set rounds=, or schedule=every_h")
    if steps < schedule.sync_every:
        raise UserError(
            f"the budget is {steps} inner steps, less than one round of schedule.sync_every={schedule.sync_every}:"
            f" set steps={schedule.sync_every}"
        )
    config.rounds = steps // schedule.sync_every


def inner_steps(config: DictConfig) -> int | None:
    """Return the number of inner steps per worker that the budget allows; None without a budget. Raises UserError."""
    given = {name: config[name] for name in BUDGETS if config[name] is not None}
    for name, value in given.items():
        if type(value) is not int or value < 1:
            raise UserError(f"{name}={value} must be a whole number of at least 1, or null: set {name}=1000")
    if len(given) > 1:
        raise UserError("steps and tokens are both set: omit one")
    if "tokens" not in given:
        return given.get("steps")
    inner, peers = config.inner, config.exchange.get("peers") or config.workers
    return given["tokens"] // (peers * inner.batch * inner.accumulate * inner.seq_len)


def refuse_rounds(overrides: Sequence[Override]) -> None:
    """Check that a budget and `rounds` are not set together. Raises UserError if they are."""
    typed = {override.key_or_group for override in overrides if override.value() is not None}
    for name in BUDGETS:
        if {name, "rounds"} <= typed:
            raise UserError(f"{name} determines the number of rounds: omit rounds= or {name}=")
