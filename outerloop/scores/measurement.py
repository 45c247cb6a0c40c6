"""Measure by how much each scored payload of a round lowers the loss of windows of the training text.

Every scored payload is measured on 2 n random windows. If the windows assigned to its sender are known, it is also
measured on n of these. The cost is counted in evaluations, each of the loss of one window with one set of weights:

    5 n   per scored payload: one on each random window, and three on each assigned window (with the slow weights, after
          the evaluator's own payload, after the scored payload)
    4 n   per round with at least one scored payload: two on each random window (with the slow weights, after the
          evaluator's own payload)

An evaluation takes about a third of the time of training on the window. So k scored payloads take as long as training
on (5 k + 4) n / 3 windows, or on (2 k + 4) n / 3 without assigned windows.
"""

from __future__ import annotations

import math
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
from outerloop.scores.benefit import estimate_benefit
from outerloop.scores.gain import FEWEST, Estimate, estimate_gain
from outerloop.scores.losses import window_losses
from outerloop.types import Tensors


@dataclass(frozen=True)
class Score:
    """The effects of one payload, in nats per token except `benefit`.

    other: mean decrease of the loss of random windows of the training text.
    benefit: `other` per unit of the payload's norm, relative to that of this peer's own payload (benefit.py); None if
        it is undefined.
    assigned: mean decrease of the loss of windows assigned to the sender; None if they are unknown.
    gain: `assigned` minus `other`, corrected for how easily the loss of each window decreases (gain.py); None if it is
        undefined.
    """

    other: float
    benefit: Estimate | None
    assigned: float | None = None
    gain: Estimate | None = None


@dataclass(frozen=True)
class Reference:
    """This peer's own payload, and its effects on random windows.

    weights: the slow weights minus the payload.
    norm: L2 norm of the payload.
    windows: the random windows, (2 n, seq_len + 1).
    before: loss of each of these windows with the slow weights, (2 n,).
    z: by how much the payload lowers these losses, (2 n,).
    """

    weights: Tensors
    norm: float
    windows: Tensor
    before: Tensor
    z: Tensor


class Measurement:
    """Measures payloads of a round with the slow weights before the round.

    Args:
        trainer: this peer's trainer; its weights are restored after each measurement.
        tokens: the whole training text.
        identify: function from a peer's name to the argument `peer` of `assigned_windows`, or None if no windows are
            assigned to peers (assignment=by_worker).
        windows: n, the number of assigned windows per payload. There are also 2 n random windows, the same for all
            payloads of a round.
        seq_len: tokens per window.
        batch: number of windows per forward pass.
        random: chooses windows. Other peers must not be able to predict its choices.
    """

    def __init__(
        self,
        trainer: Trainer[OuterLoop],
        tokens: TokenArray,
        *,
        identify: Callable[[str], str] | None,
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
        """Return the scores of the chosen messages of a round, by peer; {} if the round lacks this peer's own message.

        Args:
            messages: all usable messages of the round.
            commit: hash of the commit that determined the assigned windows; empty if it is unknown.
        """
        own = next((message for message in messages if message.header.peer == self.outer.exchange.peer), None)
        if own is None:
            return {}
        trained = int(statistics.median(message.header.samples for message in messages))
        reference = self.reference(own)
        return {message.header.peer: self.score(message, reference, commit, trained) for message in chosen}

    def reference(self, own: wire.Message) -> Reference:
        """Measure this peer's own message on new random windows.

        They are the windows that would be assigned after a random commit hash, so they are spread over the whole text.
        """
        weights = self.after(own)
        windows = self.windows_of(self.random.randbytes(32), "", range(2 * self.windows))
        before, z = self.before_and_effect(weights, windows)
        return Reference(weights, self.distance(weights), windows, before, z)

    def score(self, message: wire.Message, reference: Reference, commit: bytes, trained: int) -> Score:
        """Measure one message. `trained`: number of samples per peer in the round, the median (see `assigned_to`)."""
        weights = self.after(message)
        y = reference.before - self.losses(weights, reference.windows)
        benefit = estimate_benefit(y, reference.z, norm=self.distance(weights), own_norm=reference.norm)
        assigned = self.assigned_to(message, commit, trained)
        if assigned is None:
            return Score(float(y.mean()), benefit)
        before, assigned_z = self.before_and_effect(reference.weights, assigned)
        assigned_y = before - self.losses(weights, assigned)
        gain = estimate_gain(assigned_y, assigned_z, y, reference.z)
        return Score(float(y.mean()), benefit, float(assigned_y.mean()), gain)

    def assigned_to(self, message: wire.Message, commit: bytes, trained: int) -> Tensor | None:
        """Return windows assigned to the sender, chosen at random, (n, seq_len + 1); None if they are unknown.

        They are chosen among the first windows that the sender was due to train on: as many as it reports samples, but
        at most `trained`, whatever it reports. The result is None also if fewer than FEWEST windows are available.
        """
        if self.identify is None or not commit:
            return None
        available = min(trained, max(message.header.samples, FEWEST))
        numbers = self.random.sample(range(available), min(self.windows, available))
        return self.windows_of(commit, self.identify(message.header.peer), numbers) if len(numbers) >= FEWEST else None

    def windows_of(self, commit: bytes, peer: str, numbers: Sequence[int]) -> Tensor:
        """Return the windows with these numbers that are assigned to `peer` after `commit`, (n, seq_len + 1).

        A window's number is its index in the order in which the peer has to train on its assigned windows.
        """
        return assigned_windows(self.tokens, commit=commit, peer=peer, numbers=numbers, seq_len=self.seq_len)

    def before_and_effect(self, reference: Tensors, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of the windows with the slow weights, and how much lower they are with `reference`."""
        before = self.losses(self.outer.slow, windows)
        return before, before - self.losses(reference, windows)

    def losses(self, weights: Tensors, windows: Tensor) -> Tensor:
        """Return the loss of each window with these weights, (number of windows,), in nats per token."""
        trainer: Trainer[Any] = self.trainer
        return window_losses(trainer, weights, windows, batch=self.batch)

    def after(self, message: wire.Message) -> Tensors:
        """Return φ − x̂: the slow weights minus the decoded payload."""
        decode = self.outer.codec.decode
        return {name: x - decode(message, name, x).to(x.dtype) for name, x in self.outer.slow.items()}

    def distance(self, weights: Tensors) -> float:
        """Return ‖φ − weights‖, where φ are the slow weights."""
        return math.sqrt(sum(float((self.outer.slow[name] - x).square().sum()) for name, x in weights.items()))
