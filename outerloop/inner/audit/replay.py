"""Replay another peer's inner steps on a copy of the trainer, with the code that takes this peer's own steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor

from outerloop import rng
from outerloop.inner.audit.state import State, capture, leaf_of, restore
from outerloop.inner.data.corpus import Stream
from outerloop.inner.hooks import TrainerHooks
from outerloop.inner.trainer import Trainer
from outerloop.replica.island import Island
from outerloop.swarm.audit.leaves import Leaf

Steps = Sequence[Sequence[Tensor]]
"""The batches of each inner step, `accumulate` batches of (batch, seq_len + 1) int64 per step."""


class StepCounter:
    """The stand-in for the outer loop of a replayed peer: its model's parameters, and its position in the run."""

    is_attached = notifies_updates = False

    def __init__(self, island: Island, inner_step: int) -> None:
        self.island, self.inner_step = island, inner_step

    def before_update(self) -> float:
        return 0.0


def replay(trainer: Trainer[Any], state: State, steps: Steps, *, inner_step: int, every: int) -> list[Leaf]:
    """Take inner steps from a state. Return the leaf after every `every`-th step, and after the last one.

    `trainer` is not changed, and neither is the global random state. `inner_step`: number of inner steps of the run
    before the first one. Raises ValueError if the state does not fit the trainer.
    """
    with restored_random_state():
        copied = replica(trainer, inner_step)
        restore(copied, state, like=trainer)
        leaves = []
        for done, windows in enumerate(steps, start=1):
            copied.train_on([window.to(copied.device) for window in windows])
            copied.outer.inner_step += 1
            if done % every == 0 or done == len(steps):
                leaves.append(leaf_of(capture(copied)))
    return leaves


def replica(trainer: Trainer[Any], inner_step: int) -> Trainer[Any]:
    """Return a trainer with the same settings, and a copy of the model."""
    model = copy.deepcopy(trainer.model)
    return Trainer(
        model,
        stream=cast(Stream, None),  # the caller chooses the batches
        outer=cast(TrainerHooks, StepCounter(Island(model), inner_step)),
        optimizer=trainer.make_optimizer,
        lr_factor=trainer.lr_factor,
        warmup_steps=trainer.warmup_steps,
        accumulate=trainer.accumulate,
        micro_batch=trainer.micro_batch,
        clip_norm=trainer.clip_norm,
        precision=trainer.precision,
        forward=model,
        ranks=trainer.ranks,
    )


@contextmanager
def restored_random_state():
    """Restore the random state at the end of the block."""
    before = rng.get_state()
    try:
        yield
    finally:
        rng.set_state(before)


def steps_of(windows: Callable[[range], Tensor], *, first: int, last: int, batch: int, accumulate: int) -> Steps:
    """Return the batches of the inner steps from `first` up to, but excluding, `last`, counted since a landing.

    `windows` returns the assigned windows with the given numbers (data/assignment.py), (n, seq_len + 1) int64.
    """
    numbers = range(first * batch * accumulate, last * batch * accumulate)
    batches = windows(numbers).split(batch)
    return [batches[start : start + accumulate] for start in range(0, len(batches), accumulate)]
