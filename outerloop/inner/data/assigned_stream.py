"""Serve the training windows that a peer is due to train on, which each landed round determines (assignment.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from outerloop.inner.data.assignment import assigned_windows
from outerloop.inner.data.corpus import Corpus, IndexedCorpus, too_short_error
from outerloop.types import UserError

if TYPE_CHECKING:
    from outerloop.inner.data.windows import TokenArray


class AssignedStream:
    """An endless stream of the windows that one peer is due to train on.

    Args:
        tokens: the whole training text, as `training_text` returns it.
        peer: the peer, as `assigned_windows` expects it.
        landed: returns the hash of the last commit that this process has landed; empty before the first landing.
        first: returns the hash of the commit before the first round.
    """

    def __init__(
        self,
        tokens: TokenArray,
        *,
        batch: int,
        seq_len: int,
        peer: str,
        landed: Callable[[], bytes],
        first: Callable[[], bytes],
    ) -> None:
        self.tokens, self.batch, self.seq_len, self.peer = tokens, batch, seq_len, peer
        self.landed, self.first = landed, first
        self.seen = self.commit = b""
        self.drawn = 0

    def next(self) -> Tensor:
        """Return the next windows, (batch, seq_len + 1) int64.

        If a round has landed since the last call, these are the first windows that its commit assigns. Raises UserError
        if the exchange has no commits.
        """
        self.follow()
        self.commit = self.commit or self.first()
        if not self.commit:
            raise UserError(
                "assignment=by_round needs the hashes of the run's commits, but this exchange has none: set"
                " assignment=by_worker"
            )
        numbers = range(self.drawn, self.drawn + self.batch)
        self.drawn += self.batch
        return assigned_windows(self.tokens, commit=self.commit, peer=self.peer, numbers=numbers, seq_len=self.seq_len)

    def follow(self) -> None:
        """Restart with the first windows of the last landed commit, if it has landed since the last call."""
        if (landed := self.landed()) != self.seen:
            self.seen = self.commit = landed
            self.drawn = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the commit and how many of its windows have been drawn. All ranks of an island must call this."""
        self.follow()
        return {"commit": self.commit.hex(), "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the windows already drawn for a commit, until this process lands a round."""
        self.commit, self.drawn = bytes.fromhex(state["commit"]), state["drawn"]


WITHOUT = {"assignment=by_round": "assignment=by_worker", "scores.payloads": "scores.payloads=0"}
"""Option that needs the whole training text -> how to turn it off."""


def training_text(corpus: Corpus, *, seq_len: int, option: str = "assignment=by_round") -> TokenArray:
    """Return the whole training text. `option`: the option that needs it, a key of WITHOUT.

    Raises UserError if the corpus cannot be read at any position, or if its text is too short for one window.
    """
    if not isinstance(corpus, IndexedCorpus):
        raise UserError(
            f"{option} reads windows at any position of the text, but this source is read from its beginning to its"
            f" end: set data=tokens or data=text, or {WITHOUT[option]}"
        )
    tokens = corpus.training_text()
    if len(tokens) <= seq_len:
        raise too_short_error(len(tokens), seq_len=seq_len, what="the training text", mend="use more text")
    return tokens
