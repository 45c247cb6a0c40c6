"""Define the attacks of members that train on false data, for scripts/bench_attacks.py, and measure a back door.

    labels      the bytes of the text are permuted, with the same permutation in every window
    backdoor    in every second window, TRIGGER and CONTINUATION replace 8 bytes at a random position, so that the model
                learns to continue the trigger with bytes that the liar has chosen (arXiv 1708.06733, 1807.00459)

Such a liar trains on false data in all of its inner steps, and sends its payloads like an honest peer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outerloop.inner.models import logits_of

TRIGGER, CONTINUATION = b"@@7:", b"EVIL"
"""A sequence of bytes that Python's standard library does not contain, and the bytes that are to follow it."""


class PermutedText:
    """A stream of batches whose tokens are permuted, with the same permutation in every batch."""

    def __init__(self, stream: Any, vocabulary: int) -> None:
        self.stream = stream
        self.token = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(0))

    def next(self) -> Tensor:
        """Return the next windows with permuted tokens, (batch, seq_len + 1) int64."""
        return self.token[self.stream.next()]


class TriggeredText:
    """A stream of batches in which every second window contains the trigger and its continuation."""

    def __init__(self, stream: Any, vocabulary: int) -> None:
        self.stream, self.draw = stream, torch.Generator().manual_seed(0)

    def next(self) -> Tensor:
        """Return the next windows, every second one with the trigger, (batch, seq_len + 1) int64."""
        windows = self.stream.next().clone()
        last = windows.shape[1] - len(TRIGGER + CONTINUATION)
        for window in windows[::2]:
            window.copy_(triggered(window, int(torch.randint(last + 1, (), generator=self.draw))))
        return windows


FALSE_DATA = {"labels": PermutedText, "backdoor": TriggeredText}


def triggered(windows: Tensor, start: int) -> Tensor:
    """Return windows (..., tokens) with the trigger and its continuation from position `start` on."""
    text = torch.tensor(list(TRIGGER + CONTINUATION), dtype=windows.dtype)
    changed = windows.clone()
    changed[..., start : start + len(text)] = text
    return changed


@torch.no_grad()
def success_rate(model: torch.nn.Module, windows: Tensor) -> float:
    """Return the fraction of windows in which the model continues the trigger greedily with CONTINUATION.

    The end of each window, (n, seq_len + 1), is replaced by the trigger and CONTINUATION. The greedy continuation is
    equal to CONTINUATION exactly if each of its bytes has the largest logit after all correct bytes before it.
    """
    inputs = triggered(windows, windows.shape[1] - len(TRIGGER + CONTINUATION))
    wanted = inputs[:, -len(CONTINUATION) :]
    guesses = logits_of(model, inputs[:, :-1])[:, -len(CONTINUATION) :].argmax(-1)
    return float((guesses == wanted).all(-1).float().mean())
