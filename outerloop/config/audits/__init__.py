"""Check the settings of a run whose peers audit each other (exchange.audit), and attach the audits to a trainer."""

from __future__ import annotations

import os
from typing import Any

import torch
from omegaconf import DictConfig

from outerloop.config.instantiate import make
from outerloop.exchange.network_peer import Audited
from outerloop.inner.audit.observer import AuditObserver
from outerloop.inner.data.assigned_stream import training_text
from outerloop.inner.data.corpus import Corpus
from outerloop.inner.trainer import Trainer
from outerloop.protocols import AdaptiveSchedule, Exchange
from outerloop.swarm.audit.leaves import MAX_LEAVES
from outerloop.types import UserError

CUBLAS = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""Name and value of the environment variable that makes cuBLAS return the same bits in every call."""


def check_audits(config: DictConfig) -> None:
    """Raise UserError if exchange.audit is set together with an option that it does not support.

    This includes an exchange.audit_every that gives a round more than MAX_LEAVES leaves.
    """
    if not config.exchange.get("audit"):
        return
    schedule = make(config.schedule)
    simple = schedule.delay == 0 and schedule.fragments == 1 and not schedule.step_s
    for supported, found, remedy in (
        (config.assignment == "by_round", f"assignment={config.assignment}", "assignment=by_round"),
        (config.island.kind == "single", f"island.kind={config.island.kind}", "island=single"),
        (simple and not isinstance(schedule, AdaptiveSchedule), "this schedule", "schedule=every_h, schedule.delay=0"),
        (config.merge_local == 0, f"merge_local={config.merge_local}", "merge_local=0"),
        (bool(config.inner.optimizer), "a run without an inner optimizer", "inner=adamw"),
        (not config.inner.compile, "inner.compile=true", "inner.compile=false"),
    ):
        if not supported:
            raise UserError(f"exchange.audit does not support {found}: set {remedy}, or exchange.audit=0")
    every, least = config.exchange.audit_every, -(-schedule.sync_every // (MAX_LEAVES - 1))
    if every < least:
        raise UserError(
            f"exchange.audit_every={every} divides the {schedule.sync_every} inner steps of a round into more than"
            f" {MAX_LEAVES - 1} windows: set exchange.audit_every={least} or higher"
        )


def attach_audits(config: DictConfig, trainer: Trainer[Any], exchange: Exchange, corpus: Corpus) -> None:
    """Make a trainer record its states and audit other peers. Do nothing if the run has no audits.

    This also switches torch to deterministic mode. Call it before the first inner step.
    """
    if not isinstance(exchange, Audited) or exchange.audits is None:
        return
    os.environ.setdefault(*CUBLAS)
    torch.use_deterministic_algorithms(True)
    tokens = training_text(corpus, seq_len=config.inner.seq_len)
    trainer.observer = AuditObserver(
        trainer, exchange.audits, tokens=tokens, batch=config.inner.batch, seq_len=config.inner.seq_len
    )
