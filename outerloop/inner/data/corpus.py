"""The seam between text and training: a corpus deals batches to workers and keeps some text apart for validation.

Two promises hold for every corpus:
1. The training text of one worker is disjoint from that of every other worker and from the validation text.
2. A stream resumed from its state gives exactly the batches that would have come.

A window is seq_len + 1 tokens: inputs are its first seq_len, targets its last seq_len. Consecutive windows share one
token, so that every token of a text is a target once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from outerloop.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Stream(Protocol):
    """One worker's endless training batches."""

    def next(self) -> Tensor:
        """The next windows: (batch, seq_len + 1) int64; inputs are [:, :-1], targets [:, 1:]."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain ints and strings."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Corpus(Protocol):
    """AXIS data: one source of text."""

    vocab_size: int
    """Every token id is below this; the model's vocabulary must be at least as large."""

    def stream(self, *, rank: int, size: int, batch: int, seq_len: int, seed: int) -> Stream:
        """Training batches of worker `rank` of `size`, disjoint from those of the other ranks."""
        ...

    def validation(self, *, seq_len: int, sequences: int) -> Tensor:
        """(n <= sequences, seq_len + 1) int64 windows of the validation split, the same for every rank."""
        ...

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """What turns these token ids back into text, written beside an exported model. None: only the user knows."""
        ...


def check_rank(rank: int, size: int) -> None:
    """Refuse a worker that cannot exist."""
    if not 0 <= rank < size:
        raise UserError(
            f"worker rank {rank} of {size} workers does not exist: ranks go from 0 to workers - 1; "
            "give every worker its own rank below the number of workers"
        )


def too_short(tokens: int, *, seq_len: int, what: str, mend: str) -> UserError:
    """The error for text that does not fill one window."""
    if tokens > 1:
        mend = f"type inner.seq_len={1 << (tokens - 1).bit_length() - 1} or {mend}"
    return UserError(f"{what}: {tokens} tokens, and a sequence needs seq_len + 1 = {seq_len + 1}; {mend}")
