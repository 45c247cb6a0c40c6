"""Measure the validation loss of the mean of all workers' fast weights, just before the last round of a run lands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from omegaconf import DictConfig

from outerloop import wire
from outerloop.core.outer_loop import OuterLoop
from outerloop.inner.data.corpus import Corpus
from outerloop.inner.trainer import Trainer
from outerloop.types import Round, Tensors


class FastMean:
    """Observes the last landing of each worker of a run. The workers are threads that take turns (exchange=inprocess).

    config: settings of the run, whose schedule has one fragment.

    Attributes:
        nats: the loss of the mean, in nats per token; None until the last worker is about to land the last round.
    """

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.total: Tensors = {}
        self.seen = 0
        self.nats: float | None = None

    def attach(self, trainer: Trainer[Any], corpus: Corpus) -> None:
        """Observe the landings of one worker. Call this before its first step."""
        trainer.outer.observe_landings(partial(self.observe, trainer, corpus))

    def observe(
        self, trainer: Trainer[OuterLoop], corpus: Corpus, round: Round, messages: Sequence[wire.Message]
    ) -> None:
        """Add the fast weights of a worker that is about to land `round`. After the last worker, measure the mean."""
        if round.number != self.config.rounds - 1:
            return
        fast = trainer.outer.island.read(list(trainer.outer.slow), "weights")
        self.total = {name: self.total.get(name, 0.0) + x.double() for name, x in fast.items()}
        self.seen += 1
        if self.seen == self.config.workers:
            self.nats = self.measure(trainer, corpus)

    def measure(self, trainer: Trainer[OuterLoop], corpus: Corpus) -> float:
        """Return the loss of the mean on all validation windows. The weights of `trainer` are restored afterwards."""
        inner, sequences = self.config.inner, self.config.eval.sequences
        windows = corpus.validation(seq_len=inner.seq_len, sequences=sequences)
        mean = {name: x / self.seen for name, x in self.total.items()}
        with trainer.outer.island.temporary_weights(mean):
            return trainer.nats(windows, inner.batch) / windows[:, 1:].numel()
