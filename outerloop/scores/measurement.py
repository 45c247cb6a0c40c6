"""Measure by how much single payloads of a round lower the loss of windows of the training text.

Every scored payload is measured on n windows assigned to its sender, and on the same 2 n other windows. A payload costs
5 n window losses: three on each assigned window (slow weights, reference, payload), and one on each other window
(payload). A round with at least one scored payload costs 4 n more: two on each other window (slow weights, reference).
A window loss takes about a third of the time of training on the window, so k scored payloads take as long as training
on (5 k + 4) n / 3 windows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from torch import Tensor

from outerloop import wire
from outerloop.core.outer_loop import OuterLoop
from outerloop.inner.data.assignment import assigned_windows
from outerloop.inner.data.windows import TokenArray
from outerloop.inner.trainer import Trainer
from outerloop.scores.gain import FEWEST, Gain, estimate_gain
from outerloop.scores.losses import window_losses
from outerloop.types import Tensors

MOST_REFERENCES = 8
"""Maximum number of payloads whose mean is the reference. Decoding more would take too long."""


@dataclass(frozen=True)
class Score:
    """The effects of one payload, in nats per token.

    assigned: mean decrease of the loss of windows assigned to the sender.
    other: mean decrease of the loss of random windows of the same text.
    gain: the difference of these two, corrected for how easily the loss of each window decreases (gain.py).
    """

    assigned: float
    other: float
    gain: Gain


class Measurement:
    """Measures payloads of a round with the slow weights before the round.

    Args:
        trainer: this peer's trainer; its weights are restored after each measurement.
        tokens: the whole training text.
        identify: function from a peer's name to the argument `peer` of `assigned_windows`.
        windows: n, the number of assigned windows per payload. There are also 2 n other windows, the same for all
            payloads of a round.
        seq_len: tokens per window.
        batch: number of windows per forward pass.
        random: chooses windows and reference payloads; others must not know its state.
    """

    def __init__(
        self,
        trainer: Trainer[OuterLoop],
        tokens: TokenArray,
        *,
        identify: Callable[[str], str],
        windows: int,
        seq_len: int,
        batch: int,
        random: Random,
    ) -> None:
        self.trainer, self.outer, self.tokens = trainer, trainer.outer, tokens
        self.identify, self.windows, self.seq_len, self.batch = identify, windows, seq_len, batch
        self.random = random

    def scores(
        self, messages: Sequence[wire.Message], chosen: Sequence[wire.Message], commit: bytes
    ) -> dict[str, Score]:
        """Return the scores of the chosen messages of a round, by peer. Messages that cannot be measured are left out.

        Args:
            messages: all usable messages of the round.
            commit: hash of the commit that determined the assigned windows.
        """
        trained = int(statistics.median(message.header.samples for message in messages))
        reference = self.after(self.random.sample(list(messages), min(MOST_REFERENCES, len(messages))))
        others = self.windows_of(self.random.randbytes(32), "", range(2 * self.windows))
        others_before, others_z = self.before_and_effect(reference, others)
        scores = {}
        for message in chosen:
            weights, peer = self.after([message]), message.header.peer
            available = min(trained, message.header.samples)
            numbers = self.random.sample(range(available), min(self.windows, available))
            if len(numbers) < FEWEST:
                continue
            assigned = self.windows_of(commit, self.identify(peer), numbers)
            before, z = self.before_and_effect(reference, assigned)
            y, others_y = before - self.losses(weights, assigned), others_before - self.losses(weights, others)
            if gain := estimate_gain(y, z, others_y, others_z):
                scores[peer] = Score(float(y.mean()), float(others_y.mean()), gain)
        return scores

    def windows_of(self, commit: bytes, peer: str, numbers: Sequence[int]) -> Tensor:
        """Return those windows assigned to `peer` after `commit` that have these numbers, (len(numbers), seq_len + 1).

        A window's number is its index in the order in which the peer has to train on its assigned windows.
        """
        return assigned_windows(self.tokens, commit=commit, peer=peer, numbers=numbers, seq_len=self.seq_len)

    def before_and_effect(self, reference: Tensors, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of the windows with the slow weights, and by how much the reference lowers them."""
        before = self.losses(self.outer.slow, windows)
        return before, before - self.losses(reference, windows)

    def losses(self, weights: Tensors, windows: Tensor) -> Tensor:
        """Return the loss of each window with these weights, (number of windows,), in nats per token."""
        trainer: Trainer[Any] = self.trainer
        return window_losses(trainer, weights, windows, batch=self.batch)

    def after(self, messages: Sequence[wire.Message]) -> Tensors:
        """Return φ − x̂: the slow weights minus the mean of the decoded payloads."""
        weights, codec = {name: x.clone() for name, x in self.outer.slow.items()}, self.outer.codec
        for message in messages:
            for name, x in weights.items():
                x.sub_(codec.decode(message, name, x).to(x.dtype), alpha=1 / len(messages))
        return weights
