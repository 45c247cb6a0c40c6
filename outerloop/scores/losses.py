"""Measure the loss of each window with given weights in place of the model's current ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outerloop.inner.models import logits_of
from outerloop.inner.trainer import Trainer
from outerloop.types import Tensors


@torch.no_grad()
def window_losses(trainer: Trainer[Any], weights: Tensors, windows: Tensor, *, batch: int) -> Tensor:
    """Return the mean loss of each window with `weights`, (n,) float32 on the CPU, in nats per token.

    The model computes in evaluation mode, so no random numbers are drawn. Afterwards it is in training mode, and its
    weights are restored bit for bit.

    Args:
        windows: (n, seq_len + 1) token ids.
        batch: number of windows per forward pass.
    """
    with trainer.outer.temporary_weights(weights):
        trainer.model.eval()
        with trainer.autocast():
            losses = [losses_of(trainer.model, part.to(trainer.device)) for part in windows.split(batch)]
        trainer.model.train()
    return torch.cat(losses).cpu()


def losses_of(model: torch.nn.Module, windows: Tensor) -> Tensor:
    """Return the mean loss of each window with the model's current weights, (n,) float32, in nats per token."""
    logits = logits_of(model, windows[:, :-1]).float()
    return F.cross_entropy(logits.transpose(1, 2), windows[:, 1:], reduction="none").mean(1)
