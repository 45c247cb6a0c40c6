"""Pack the texts of a Hugging Face dataset into windows, and keep the position in the dataset.

Texts are packed end to end, in the dataset's own order, because a shuffle buffer could not be resumed exactly. A late
joiner reads all of the text, divided into parts, in an order of the parts that its name determines. The saved position
consists of the dataset's own position and the tokens that were read but not yet returned.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from outerloop.inner.data.corpus import too_short_error
from outerloop.types import UserError

if TYPE_CHECKING:
    from outerloop.inner.data.hf import HuggingFace

logger = logging.getLogger(__name__)

WAITS_S = (5, 10, 20, *[30] * 10)
"""Seconds between the attempts to reach the text again, 5.6 minutes in all."""
MAX_SKIPPED = 1024
BEGINNING = {"epoch": 0, "epoch_tokens": 0, "position": "null", "pending": "[]"}
OTHER_TEXT = (
    "data=hf: the checkpoint has a position in the text of {saved}, but this is {own}: its text is read from the"
    " beginning"
)


class Unreachable(UserError):
    """The server of the dataset cannot be reached, or did not deliver."""


class Parts(Protocol):
    """The parts of the dataset that a stream reads one after the other."""

    @property
    def count(self) -> int:
        """Number of parts. After the last one, the stream begins a new epoch of all parts."""
        ...

    @property
    def name(self) -> str:
        """Name of these parts, also in messages."""
        ...

    @property
    def skipped(self) -> int:
        """Number of texts that are left out at the beginning of the first part, in the first epoch only."""
        ...

    def part(self, index: int) -> tuple[int, int]:
        """Return the arguments of `HuggingFace.open_part` for the part with this index, counted over all epochs."""
        ...


@dataclass(frozen=True)
class WorkerPart:
    """The part of one worker: the same in each epoch, so that no two workers train on the same text."""

    rank: int
    size: int
    count = 1
    skipped = 0

    @property
    def name(self) -> str:
        return f"worker {self.rank} of {self.size}"

    def part(self, index: int) -> tuple[int, int]:
        return self.rank, self.size


@dataclass(frozen=True)
class OwnOrder:
    """All `count` parts of the dataset. The seed determines their order, which is another one in each epoch.

    It also determines how many texts are left out at the beginning, because two late joiners may begin with the same
    part.
    """

    seed: int
    count: int

    @property
    def name(self) -> str:
        return f"a late joiner, {self.count} parts in order {self.seed}"

    @property
    def skipped(self) -> int:
        return int(np.random.default_rng(self.seed).integers(MAX_SKIPPED))

    def part(self, index: int) -> tuple[int, int]:
        epoch, place = divmod(index, self.count)
        return int(np.random.default_rng([self.seed, epoch]).permutation(self.count)[place]), self.count


class Packer:
    """Joins documents end to end and cuts them into windows of seq_len + 1 tokens.

    The attribute `pending` (tokens not returned yet) is the whole state.
    """

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


class HuggingFaceStream:
    """The windows of one worker, packed from its parts of the dataset, epoch after epoch.

    The dataset is reopened for each part. `set_epoch` is not used: it would redistribute the files, so that workers
    would train on other workers' parts. If the network fails in the middle of a run, the stream waits, and continues at
    the same position.

    The attribute `notes` contains what the user should know about the position that was loaded last.
    """

    def __init__(self, corpus: HuggingFace, parts: Parts, *, batch: int, seq_len: int) -> None:
        self.corpus, self.parts, self.batch = corpus, parts, batch
        self.packer = Packer(seq_len)
        self.notes: list[str] = []
        self._enter(index=0, epoch_tokens=0, position=None)

    def next(self) -> Tensor:
        return torch.stack([self._window() for _ in range(self.batch)])

    def state_dict(self) -> dict[str, Any]:
        """Return the position. "epoch" counts the parts that were read completely."""
        return {
            "epoch": self.index,
            "epoch_tokens": self.epoch_tokens,
            "position": json.dumps(self.position),
            "pending": json.dumps(self.packer.pending.tolist()),
            "text": self.text(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at a position returned by `state_dict`, or at the beginning if it is a position in other text."""
        own = self.text()
        saved = state.get("text", own if isinstance(self.parts, WorkerPart) else "a member of the run")
        self.notes = [] if saved == own else [OTHER_TEXT.format(saved=saved, own=own)]
        if self.notes:
            state = BEGINNING
        self.packer.pending = np.array(json.loads(state["pending"]), dtype=np.int64)
        position = json.loads(state["position"])
        self._enter(index=state["epoch"], epoch_tokens=state["epoch_tokens"], position=position)

    def text(self) -> str:
        """Return which text this stream reads: its parts, and the number of files of the current one."""
        return f"{self.parts.name} (of {self.dataset.n_shards} files)"

    def _enter(self, *, index: int, epoch_tokens: int, position: dict[str, Any] | None) -> None:
        self.index, self.epoch_tokens, self.position = index, epoch_tokens, position
        self._open()

    def _open(self) -> Iterator[np.ndarray]:
        """Open the dataset at the current position. Raises Unreachable if that fails."""
        self.dataset = self.corpus.open_part(*self.parts.part(self.index))
        if self.position is not None:
            self.dataset.load_state_dict(self.position)
        self.to_skip = self.parts.skipped if self.index == 0 and self.position is None else 0
        self.documents: Iterator[np.ndarray] | None = self.corpus.training_tokens(self.dataset)
        return self.documents

    def _window(self) -> Tensor:
        while not self.packer.ready():
            tokens = self._next_document()
            if tokens is None:
                self._next_part()
                continue
            self.epoch_tokens += len(tokens)
            if self.to_skip:
                self.to_skip -= 1
            else:
                self.packer.add(tokens)
                self.position = self.dataset.state_dict()
        return self.packer.window()

    def _next_document(self) -> np.ndarray | None:
        """Return the tokens of the next document, or None at the end of a part.

        Raises Unreachable if the text cannot be reached for several minutes.
        """
        for wait_s in WAITS_S:
            try:
                return next(self.documents or self._open(), None)
            except Unreachable as error:
                self.documents = None
                logger.warning("%s; trying again in %d s", str(error).partition(";")[0], wait_s)
                time.sleep(wait_s)
        return next(self.documents or self._open(), None)

    def _next_part(self) -> None:
        index = self.index + 1
        ends_epoch = index % self.parts.count == 0
        if ends_epoch and self.epoch_tokens <= self.packer.seq_len:
            what = f"{self.corpus.what}, training text of {self.parts.name}"
            mend = "use fewer workers or more text"
            raise too_short_error(self.epoch_tokens, seq_len=self.packer.seq_len, what=what, mend=mend)
        self.index, self.epoch_tokens, self.position = index, 0 if ends_epoch else self.epoch_tokens, None
        self.documents = None
