"""Documents end to end, cut into windows: what is left of one document begins the next window."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Packer:
    """Tokens in, windows of seq_len + 1 out. `pending` is all its state."""

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len
        self.pending = np.empty(0, dtype=np.int64)

    def add(self, tokens: np.ndarray) -> None:
        self.pending = np.concatenate([self.pending, tokens])

    def ready(self) -> bool:
        return len(self.pending) > self.seq_len

    def window(self) -> Tensor:
        """(seq_len + 1,) int64; its last token is also the first of the next window."""
        window, self.pending = self.pending[: self.seq_len + 1], self.pending[self.seq_len :]
        return torch.from_numpy(window.copy())
