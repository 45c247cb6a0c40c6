"""Text files as a corpus: split by file, dealt to workers by file, each worker reading only its own into memory.

Both rules fall back to positions where files are too few or too unequal to serve, a single large file above all:
the last 5 % of the joined text validates, and workers train on contiguous spans of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from outerloop.inner.data.corpus import check_rank
from outerloop.inner.data.split import deal, is_held_out, span, training_length
from outerloop.inner.data.tokenization import Encoding
from outerloop.inner.data.windows import WindowStream, spread_windows
from outerloop.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Document:
    """One text file."""

    name: str
    """Decides the split: a path that is the same on every machine."""
    path: Path
    bytes: int


class Documents:
    """The corpus of a list of text files.

    Args:
        documents: the files; names are unique.
        encoding: how a file becomes tokens.
        what: how messages call this corpus.
        whole_packages: deal whole top-level folders (non-IID workers), not single files.
    """

    def __init__(self, documents: Sequence[Document], *, encoding: Encoding, what: str, whole_packages: bool) -> None:
        self.documents = sorted(documents, key=lambda document: document.name)
        self.encoding, self.what, self.whole_packages = encoding, what, whole_packages
        self.vocab_size = encoding.vocab_size

    def stream(self, *, rank: int, size: int, batch: int, seq_len: int, seed: int) -> WindowStream:
        check_rank(rank, size)
        what = f"{self.what}, training text of worker {rank} of {size}"
        return WindowStream(self._training(rank, size), batch=batch, seq_len=seq_len, seed=seed, what=what)

    def validation(self, *, seq_len: int, sequences: int) -> Tensor:
        what = f"{self.what}, validation text"
        return spread_windows(self._validation(), seq_len=seq_len, sequences=sequences, what=what)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.encoding.tokenizer()

    def split(self) -> tuple[list[Document], list[Document]] | None:
        """(training, validation) documents; None when the held-out files are not between 1 % and 20 % of the bytes."""
        training: list[Document] = []
        held_out: list[Document] = []
        for document in self.documents:
            (held_out if is_held_out(document.name.encode()) else training).append(document)
        share = total_bytes(held_out) / max(1, total_bytes(self.documents))
        return (training, held_out) if 0.01 <= share <= 0.2 else None

    def shares(self, training: Sequence[Document], size: int) -> list[list[Document]]:
        """Each worker's documents, dealt by the file or by the package."""
        packages = group_by_package(training) if self.whole_packages else {d.name: [d] for d in training}
        if self.whole_packages and len(packages) < size:
            raise UserError(
                f"data.non_iid=true gives whole packages, and {size} workers share {len(packages)} packages; "
                f"use at most {len(packages)} workers or type data.non_iid=false"
            )
        hands = deal({name: total_bytes(package) for name, package in packages.items()}, size)
        return [[document for name in hand for document in packages[name]] for hand in hands]

    def _training(self, rank: int, size: int) -> np.ndarray:
        split = self.split()
        if split is None:
            tokens = self._read(self.documents)
            tokens = tokens[: training_length(len(tokens))]
            return tokens[span(len(tokens), rank, size)]
        shares = self.shares(split[0], size)
        if self.whole_packages or is_fair(shares):
            return self._read(shares[rank])
        tokens = self._read(split[0])
        return tokens[span(len(tokens), rank, size)]

    def _validation(self) -> np.ndarray:
        split = self.split()
        if split is not None:
            return self._read(split[1])
        tokens = self._read(self.documents)
        return tokens[training_length(len(tokens)) :]

    def _read(self, documents: Sequence[Document]) -> np.ndarray:
        if not documents:
            return np.empty(0, dtype=np.uint8)
        return np.concatenate([self.encoding.encode(document.path.read_bytes()) for document in documents])


def total_bytes(documents: Sequence[Document]) -> int:
    return sum(document.bytes for document in documents)


def is_fair(shares: Sequence[Sequence[Document]]) -> bool:
    """No worker holds less than half of an equal share."""
    loads = [total_bytes(share) for share in shares]
    return min(loads) * 2 * len(loads) >= sum(loads)


def group_by_package(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """Top-level folder -> its documents; a file at the top is its own package."""
    packages: dict[str, list[Document]] = {}
    for document in documents:
        packages.setdefault(document.name.split("/")[0], []).append(document)
    return packages
