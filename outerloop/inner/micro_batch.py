"""Measure how many sequences fit in memory in one forward and backward pass. No weight changes.

CUDA       passes over the whole batch, half of it, a quarter, ... are run until one does not run out of memory
elsewhere  the operating system would kill a program that runs out of memory, so only a pass over one sequence is run,
           or simulated with fake tensors. The peak bytes of its tensors, times the number of sequences, must fit in the
           available memory
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch.nn import Module

from outerloop.inner.live_bytes import LiveBytes
from outerloop.inner.models import next_token_loss


class TrialPass:
    """Runs forward and backward passes over random tokens, which add to the gradients of a model.

    Args:
        model: the model, on its device.
        autocast: creates the context of the forward pass.
        seq_len: tokens per sequence.
        vocab_size: number of token ids.
    """

    def __init__(
        self, model: Module, autocast: Callable[[], AbstractContextManager], *, seq_len: int, vocab_size: int
    ) -> None:
        self.model, self.autocast = model, autocast
        self.seq_len, self.vocab_size = seq_len, vocab_size
        self.device = next(model.parameters()).device

    def run(self, sequences: int) -> None:
        """Run one pass. Raises torch.OutOfMemoryError if a GPU has too little memory."""
        window = torch.randint(self.vocab_size, (sequences, self.seq_len + 1), device=self.device)
        with self.autocast():
            loss = next_token_loss(self.model, window)
        loss.backward()

    def fits(self, sequences: int) -> bool:
        """Return whether a pass over this many sequences fits in the memory of a GPU that also holds gradients."""
        fits = True
        try:
            self.run(sequences)
            self.run(sequences)
        except torch.OutOfMemoryError:
            fits = False
        self.model.zero_grad()  # outside the except block, which keeps the tensors of the failed pass alive
        torch.cuda.empty_cache()
        return fits

    def bytes_per_sequence(self) -> int:
        """Return the peak number of bytes that a pass over one sequence needs in addition to weights and gradients."""
        self.run(1)
        with LiveBytes() as live:
            self.run(1)
        return live.peak


def largest(batch: int, fits: Callable[[int], bool]) -> int | None:
    """Return the first of batch, ⌈batch/2⌉, ⌈batch/4⌉, ..., 1 that fits, or None if none of them does."""
    return next(filter(fits, halved(batch)), None)


def halved(batch: int) -> Iterator[int]:
    """Yield batch, ⌈batch/2⌉, ⌈batch/4⌉, ..., 1."""
    while batch > 1:
        yield batch
        batch = -(-batch // 2)
    yield 1
