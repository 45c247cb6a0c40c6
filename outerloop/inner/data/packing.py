"""Join documents end to end and cut them into windows. The rest of a document begins the next window."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Packer:
    """A buffer that takes documents and returns windows of seq_len + 1 tokens. `pending` is its whole state."""

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len
        self.pending = np.empty(0, dtype=np.int64)

    def add(self, tokens: np.ndarray) -> None:
        self.pending = np.concatenate([self.pending, tokens])

    def ready(self) -> bool:
        return len(self.pending) > self.seq_len

    def window(self) -> Tensor:
        """Return a window (seq_len + 1,) int64. Its last token is also the first of the next window."""
        window, self.pending = self.pending[: self.seq_len + 1], self.pending[self.seq_len :]
        return torch.from_numpy(window.copy())
