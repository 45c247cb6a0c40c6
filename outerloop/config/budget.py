"""Convert a budget of steps or tokens to a number of rounds, so that recipes with different H do equal work.

    steps    inner steps per worker                 rounds = steps // H
    tokens   total training tokens of all workers   steps = tokens // (peers · batch · accumulate · seq_len)

H is schedule.sync_every, the number of inner steps per round. The last round lands up to schedule.delay inner steps
after the budget is used up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from outerloop.config.instantiate import make
from outerloop.protocols import AdaptiveSchedule
from outerloop.types import UserError

BUDGETS = ("steps", "tokens")


def apply(config: DictConfig) -> None:
    """Set `config.rounds` to the number of rounds that fit into the budget, if a budget is set.

    Raises UserError if the budget is less than one round, or if the schedule does not fix the number of steps per
    round.
    """
    steps = inner_steps(config)
    if steps is None:
        return
    sync_every = fixed_h(config)
    if sync_every is None:
        raise UserError(
            "the options steps and tokens need a schedule with a fixed H: set rounds= instead, or schedule=every_h"
        )
    if steps < sync_every:
        raise UserError(
            f"the budget is {steps} inner steps, less than one round of schedule.sync_every={sync_every}:"
            f" set steps={sync_every}"
        )
    config.rounds = steps // sync_every


def fixed_h(config: DictConfig) -> int | None:
    """Return H, the number of inner steps per round, or None if the schedule does not fix it."""
    schedule = make(config.schedule)
    varies = schedule.step_s > 0 or isinstance(schedule, AdaptiveSchedule)
    return None if varies else int(schedule.sync_every)


def inner_steps(config: DictConfig) -> int | None:
    """Return the number of inner steps per worker that the budget allows, or None if no budget is set.

    Raises UserError if both steps and tokens are set.
    """
    given = {name: config[name] for name in BUDGETS if config[name] is not None}
    if len(given) > 1:
        raise UserError("steps and tokens are both set: omit one")
    if "tokens" not in given:
        return given.get("steps")
    return given["tokens"] // tokens_per_step(config)


def refuse_rounds(overrides: Sequence[Override]) -> None:
    """Raise UserError if the overrides set both a budget and `rounds`."""
    typed = {override.key_or_group for override in overrides if override.value() is not None}
    for name in BUDGETS:
        if {name, "rounds"} <= typed:
            raise UserError(f"{name} determines the number of rounds: omit rounds= or {name}=")


def unequal_work(configs: Sequence[DictConfig]) -> str | None:
    """Return a warning if the runs of a sweep do different amounts of work, or None if all do the same amount.

    Work is measured in tokens if the first run has a token budget, otherwise in inner steps. Also return None if a
    schedule does not fix the number of inner steps per round, because the amount of work is then unknown.
    """
    name = "steps" if configs[0].tokens is None else "tokens"
    hs = [h for config in configs if (h := fixed_h(config))]
    if len(hs) < len(configs):
        return None
    pairs = zip(configs, hs, strict=True)
    units = [h * (tokens_per_step(config) if name == "tokens" else 1) for config, h in pairs]
    trained = sorted({config.rounds * unit for config, unit in zip(configs, units, strict=True)})
    if len(trained) == 1:
        return None
    common = math.lcm(*units)
    enough = common * -(-(configs[0][name] or trained[-1]) // common)
    return (
        f"the runs train for {' or '.join(map(str, trained))} {name}, so their losses are not comparable: set"
        f" {name}={enough}, a multiple of the {name} in one round of each run"
    )


def tokens_per_step(config: DictConfig) -> int:
    """Return the total number of tokens that all workers of the run process in one inner step."""
    inner, peers = config.inner, config.exchange.get("peers") or config.workers
    return int(peers * inner.batch * inner.accumulate * inner.seq_len)
