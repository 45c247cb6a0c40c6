"""Describe everything on a machine that determines the last bits of an inner step."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from outerloop.inner.data.windows import TokenArray, spread_windows
from outerloop.inner.trainer import Trainer, pick_precision
from outerloop.kernels import arithmetic_platform
from outerloop.swarm.audit.leaves import machine_class

SAMPLES = 256
"""Number of windows of the training text hashed into the machine class, so that other data gives another class."""


def class_of(trainer: Trainer[Any], tokens: TokenArray, *, seq_len: int, batch: int, sync_every: int) -> bytes:
    """Return the hash of this machine's class: peers of one class get the same bits from the same inner step.

    Call it in the training thread, once the number of threads is set.
    """
    settings = [trainer.accumulate, trainer.micro_batch, batch, sync_every, trainer.warmup_steps, trainer.clip_norm]
    windows = spread_windows(tokens, seq_len=seq_len, sequences=SAMPLES, what="the training text")
    text = hashlib.sha256(windows.numpy().tobytes()).hexdigest()
    return machine_class(
        f"{arithmetic_platform.described(trainer.device)}, {arithmetic_platform.processor_variant()},"
        f" {trainer.device.type},"
        f" {pick_precision(trainer.precision, trainer.device)}, {settings}, {len(tokens)} tokens {text},"
        f" deterministic {torch.are_deterministic_algorithms_enabled()}"
    )
