"""Sample windows from a token array, in a new order every epoch.

In epoch e, the tokens are cut at phase_e, phase_e + seq_len, phase_e + 2 seq_len, ..., and the windows are visited in a
permuted order. Phase and permutation are drawn from default_rng([seed, e]), so the epoch and the number of visited
windows (cursor) are the whole state. The random phase shifts the cuts, so that over many epochs a token occurs at every
position in a window.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from outerloop.inner.data.corpus import too_short_error


class TokenArray(Protocol):
    """A numpy array, a memory map, or any other object that supports slicing."""

    def __len__(self) -> int: ...

    def __getitem__(self, window: slice, /) -> np.ndarray: ...


class WindowStream:
    """An endless stream of batches of windows from one token array."""

    def __init__(self, tokens: TokenArray, *, batch: int, seq_len: int, seed: int, what: str) -> None:
        if len(tokens) <= seq_len:
            raise too_short_error(len(tokens), seq_len=seq_len, what=what, mend="use fewer workers or more text")
        self.tokens, self.batch, self.seq_len, self.seed = tokens, batch, seq_len, seed
        self._enter(epoch=0, cursor=0)

    def next(self) -> Tensor:
        """Return the next windows, (batch, seq_len + 1) int64. A batch may span two epochs."""
        return torch.stack([self._window() for _ in range(self.batch)])

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._enter(epoch=state["epoch"], cursor=state["cursor"])

    def _enter(self, *, epoch: int, cursor: int) -> None:
        rng = np.random.default_rng([self.seed, epoch])
        predicted = len(self.tokens) - 1
        self.phase = int(rng.integers(min(self.seq_len, predicted - self.seq_len + 1)))
        self.order = rng.permutation((predicted - self.phase) // self.seq_len)
        self.epoch, self.cursor = epoch, cursor

    def _window(self) -> Tensor:
        if self.cursor >= len(self.order):
            self._enter(epoch=self.epoch + 1, cursor=0)
        start = self.phase + int(self.order[self.cursor]) * self.seq_len
        self.cursor += 1
        return window(self.tokens, start, self.seq_len)


def window(tokens: TokenArray, start: int, seq_len: int) -> Tensor:
    """Return the window that begins at `start`: (seq_len + 1,) int64."""
    return torch.from_numpy(tokens[start : start + seq_len + 1].astype(np.int64))


def spread_windows(tokens: TokenArray, *, seq_len: int, sequences: int, what: str) -> Tensor:
    """Return at most `sequences` windows, (n, seq_len + 1) int64, evenly spaced over the whole array."""
    windows = (len(tokens) - 1) // seq_len
    if windows < 1:
        raise too_short_error(len(tokens), seq_len=seq_len, what=what, mend="use more text")
    count = min(sequences, windows)
    return torch.stack([window(tokens, i * windows // count * seq_len, seq_len) for i in range(count)])
