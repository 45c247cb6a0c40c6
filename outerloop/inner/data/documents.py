"""Serve text files as a corpus.

Whole files are held out for validation or assigned to workers, and each worker reads only its own files. If this would
hold out too small or too large a share of the bytes (for example, if all text is in one file), the last 5 % of the
joined text is used for validation instead. In that case, or if the files cannot be assigned to workers evenly enough,
workers train on contiguous spans of the joined training text, and each worker reads all of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from outerloop.inner.data.corpus import check_rank
from outerloop.inner.data.fingerprint import fingerprint_of
from outerloop.inner.data.partition import balance_by_bytes, is_held_out, rank_span, training_length
from outerloop.inner.data.tokenization import Encoding
from outerloop.inner.data.windows import WindowStream, spread_windows
from outerloop.state.damage import refuse_unreadable
from outerloop.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Document:
    """One text file."""

    name: str
    """Path that is the same on every machine; its hash determines whether the file is held out for validation."""
    path: Path
    bytes: int


class Documents:
    """A corpus made of text files.

    Args:
        documents: the files; their names must be unique.
        encoding: converts files to tokens.
        what: name of this corpus in messages.
        whole_packages: whether to assign whole top-level folders to workers (non-IID) instead of single files.
    """

    def __init__(self, documents: Sequence[Document], *, encoding: Encoding, what: str, whole_packages: bool) -> None:
        self.documents = sorted(documents, key=lambda document: document.name)
        self.encoding, self.what, self.whole_packages = encoding, what, whole_packages
        self.vocab_size = encoding.vocab_size

    def stream(self, *, rank: int, size: int, batch: int, seq_len: int, seed: int) -> WindowStream:
        check_rank(rank, size)
        what = f"{self.what}, training text of worker {rank} of {size}"
        return WindowStream(self._training(rank, size), batch=batch, seq_len=seq_len, seed=seed, what=what)

    def training_text(self) -> np.ndarray:
        """Return the training text of all workers. Raises UserError if whole packages are assigned to workers."""
        if self.whole_packages:
            raise UserError(
                "data.non_iid=true gives each worker packages of its own, but assignment=by_round draws from all of the"
                " text: set data.non_iid=false or assignment=by_worker"
            )
        return self._training(0, 1)

    def validation(self, *, seq_len: int, sequences: int) -> Tensor:
        what = f"{self.what}, validation text"
        return spread_windows(self._validation(), seq_len=seq_len, sequences=sequences, what=what)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.encoding.tokenizer()

    @property
    def tokenizer_identity(self) -> str:
        """Identity of the tokenizer (tokenization.py)."""
        return self.encoding.identity

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the text (fingerprint.py)."""
        return fingerprint_of(((one.name, one.bytes) for one in self.documents), self.encoding.identity)

    def tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the training and the validation tokens, each as the documents joined in the order of their names."""
        split = self.split()
        return (self._read(split[0]), self._read(split[1])) if split else self._unsplit()

    def split(self) -> tuple[list[Document], list[Document]] | None:
        """Return (training, validation) documents, or None if the held-out share of the bytes is not 1 % to 20 %."""
        training: list[Document] = []
        held_out: list[Document] = []
        for document in self.documents:
            (held_out if is_held_out(os.fsencode(document.name)) else training).append(document)
        share = total_bytes(held_out) / max(1, total_bytes(self.documents))
        return (training, held_out) if 0.01 <= share <= 0.2 else None

    def documents_by_worker(self, training: Sequence[Document], size: int) -> list[list[Document]]:
        """Return each worker's documents, assigned by file or by package (top-level folder).

        Raises UserError if packages are assigned and there are fewer packages than workers.
        """
        packages = group_by_package(training) if self.whole_packages else {d.name: [d] for d in training}
        if self.whole_packages and len(packages) < size:
            raise UserError(
                f"data.non_iid=true needs a package per worker: {size} workers, but only {len(packages)} packages; "
                f"use at most {len(packages)} workers or set data.non_iid=false"
            )
        names_by_worker = balance_by_bytes({name: total_bytes(package) for name, package in packages.items()}, size)
        return [[document for name in names for document in packages[name]] for names in names_by_worker]

    def _training(self, rank: int, size: int) -> np.ndarray:
        split = self.split()
        if split is not None:
            shares = self.documents_by_worker(split[0], size)
            if self.whole_packages or is_fair(shares):
                return self._read(shares[rank])
        tokens = self._read(split[0]) if split else self._unsplit()[0]
        return tokens[rank_span(len(tokens), rank, size)]

    def _validation(self) -> np.ndarray:
        split = self.split()
        return self._read(split[1]) if split else self._unsplit()[1]

    def _unsplit(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first 95 % and the last 5 % of the joined text, for training and for validation."""
        tokens = self._read(self.documents)
        length = training_length(len(tokens))
        return tokens[:length], tokens[length:]

    def _read(self, documents: Sequence[Document]) -> np.ndarray:
        if not documents:
            return np.empty(0, dtype=np.uint8)
        return np.concatenate([self.encoding.encode(read_document(document.path)) for document in documents])


def read_document(path: Path) -> bytes:
    """Read a text file. Raises UserError if it cannot be read."""
    with refuse_unreadable(path, mend="let this user read the file, or leave it out of the data"):
        return path.read_bytes()


def total_bytes(documents: Sequence[Document]) -> int:
    return sum(document.bytes for document in documents)


def is_fair(shares: Sequence[Sequence[Document]]) -> bool:
    """Return whether every worker has at least half as many bytes as in an equal split."""
    loads = [total_bytes(share) for share in shares]
    return min(loads) * 2 * len(loads) >= sum(loads)


def group_by_package(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """Return a mapping from top-level folder to its documents. A file at the top level is its own package."""
    packages: dict[str, list[Document]] = {}
    for document in documents:
        packages.setdefault(document.name.split("/")[0], []).append(document)
    return packages
