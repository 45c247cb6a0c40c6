"""Define the interface between text and training: a corpus serves batches and holds out text for validation.

Every corpus guarantees, for the streams that it returns:
1. The training text of one worker is disjoint from that of every other worker and from the validation text. Only late
   joiners train on text of others.
2. A stream that is resumed from its state yields exactly the batches that the original would have yielded.

A window consists of seq_len + 1 tokens: the first seq_len are the inputs, the last seq_len the targets. Consecutive
windows share one token, so that every token of a text, except the first, is a target once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from outerloop.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from outerloop.inner.data.windows import TokenArray


class Stream(Protocol):
    """An endless stream of training batches for one worker."""

    def next(self) -> Tensor:
        """Return the next windows: (batch, seq_len + 1) int64; inputs are [:, :-1], targets [:, 1:]."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the stream as plain ints and strings."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Corpus(Protocol):
    """A source of training and validation text."""

    vocab_size: int
    """Upper bound on the token ids (exclusive); the model's vocabulary must be at least this large."""

    def stream(self, *, rank: int, size: int, batch: int, seq_len: int, seed: int) -> Stream:
        """Return the stream of worker `rank` among `size` workers. No two workers train on the same text."""
        ...

    def validation(self, *, seq_len: int, sequences: int) -> Tensor:
        """Return up to `sequences` windows of the validation text, (n, seq_len + 1) int64, equal for all workers."""
        ...

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Return the tokenizer that belongs to the token ids, to be saved with an exported model; None if unknown."""
        ...


@runtime_checkable
class IndexedCorpus(Corpus, Protocol):
    """A corpus whose training text can be read at any position."""

    def training_text(self) -> TokenArray:
        """Return the training text of all workers. It contains no validation text."""
        ...


@runtime_checkable
class SequentialCorpus(Corpus, Protocol):
    """A corpus that is read from its beginning to its end, so that the seed of `stream` has no effect."""

    def late_stream(self, *, batch: int, seq_len: int, seed: int) -> Stream:
        """Return the stream of a late joiner: the whole training text, in an order that `seed` determines."""
        ...


def notes_of(part: object) -> Sequence[str]:
    """Return what the user should know about a corpus, or about the position that a stream has loaded; often nothing.

    A corpus or a stream has these lines in its optional attribute `notes`.
    """
    return getattr(part, "notes", ())


def check_rank(rank: int, size: int) -> None:
    """Check that 0 <= rank < size. Raises UserError if not."""
    if not 0 <= rank < size:
        raise UserError(
            f"worker rank {rank} is out of range: with {size} workers, ranks are 0 .. workers - 1; "
            "give every worker its own rank in this range"
        )


def too_short_error(tokens: int, *, seq_len: int, what: str, mend: str) -> UserError:
    """Return the error for a text that is too short for one window. `what`: its name; `mend`: what to do."""
    if tokens > 1:
        mend = f"set inner.seq_len={1 << (tokens - 1).bit_length() - 1} or {mend}"
    return UserError(f"{what}: {tokens} tokens, but a sequence needs seq_len + 1 = {seq_len + 1}; {mend}")
