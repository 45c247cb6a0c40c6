"""Build the scorer of a worker from the options `scores.*`."""

from __future__ import annotations

from functools import partial
from random import Random, SystemRandom
from typing import Any

from outerloop.exchange_protocols import replicated
from outerloop.inner.data.assigned_stream import training_text
from outerloop.inner.data.corpus import Corpus
from outerloop.inner.trainer import Trainer
from outerloop.inner.training_stream import chain_hashes, peer_of_windows, round_hashes
from outerloop.scores.measurement import Measurement
from outerloop.scores.scorer import Emit, PayloadScorer


def make_scorer(
    corpus: Corpus,
    trainer: Trainer[Any],
    *,
    payloads: float,
    windows: int,
    seq_len: int,
    seed: int,
    batch: int,
    assigned: bool,
    emit: Emit,
    random: Random | None = None,
) -> PayloadScorer:
    """Return the scorer of one worker, to be passed to OuterLoop.observe_landings.

    Args:
        payloads, windows: the options scores.payloads and scores.windows.
        seq_len: tokens per window.
        seed: the run's seed.
        batch: number of windows per forward pass.
        assigned: whether commits determine the windows on which peers train (assignment=by_round).
        emit: emit(event, **fields) emits an event of the worker.
        random: source of the scorer's random choices. None: random numbers of the operating system, which no other peer
            can predict.
    """
    outer, random = trainer.outer, random or SystemRandom()
    has_chain = replicated(outer.exchange) is not None
    landed, first = chain_hashes(outer.exchange) if has_chain else round_hashes(outer, seed)
    identify = partial(peer_of_windows, has_chain=has_chain) if assigned else None
    measurement = Measurement(
        trainer,
        training_text(corpus, seq_len=seq_len),
        identify=identify,
        windows=windows,
        seq_len=seq_len,
        batch=batch,
        random=random,
    )
    return PayloadScorer(
        outer,
        measurement,
        commit=lambda: landed() or first(),
        payloads=payloads,
        random=random,
        emit=emit,
    )
