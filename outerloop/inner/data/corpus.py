"""The interface between text and training. A corpus serves batches to workers and holds out text for validation.

Every corpus guarantees:
1. The training text of one worker is disjoint from that of every other worker and from the validation text.
2. A stream that is resumed from its state yields exactly the batches that the original would have yielded.

A window consists of seq_len + 1 tokens. Its first seq_len tokens are the inputs, its last seq_len tokens the targets.
Consecutive windows share one token, so that every token of a text, except the first, is a target once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from outerloop.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Stream(Protocol):
    """An endless stream of training batches for one worker."""

    def next(self) -> Tensor:
        """Return the next windows: (batch, seq_len + 1) int64; inputs are [:, :-1], targets [:, 1:]."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the stream, as plain ints and strings."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Corpus(Protocol):
    """AXIS data: one source of text."""

    vocab_size: int
    """All token ids are below this number; the model's vocabulary must be at least as large."""

    def stream(self, *, rank: int, size: int, batch: int, seq_len: int, seed: int) -> Stream:
        """Return the stream of worker `rank` among `size` workers. No two workers train on the same text."""
        ...

    def validation(self, *, seq_len: int, sequences: int) -> Tensor:
        """Return (n <= sequences, seq_len + 1) int64 windows of the validation split, the same for every rank."""
        ...

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Return the tokenizer of these token ids, which is saved with an exported model; None if it is not known."""
        ...


def check_rank(rank: int, size: int) -> None:
    """Check that 0 <= rank < size. Raises UserError if not."""
    if not 0 <= rank < size:
        raise UserError(
            f"worker rank {rank} of {size} workers does not exist: ranks go from 0 to workers - 1; "
            "give every worker its own rank below the number of workers"
        )


def too_short_error(tokens: int, *, seq_len: int, what: str, mend: str) -> UserError:
    """Return the error for a text that does not fill one window. `what`: name of the text; `mend`: advice."""
    if tokens > 1:
        mend = f"set inner.seq_len={1 << (tokens - 1).bit_length() - 1} or {mend}"
    return UserError(f"{what}: {tokens} tokens, but a sequence needs seq_len + 1 = {seq_len + 1}; {mend}")
