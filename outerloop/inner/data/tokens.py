"""Read token shards in llm.c's format: text is tokenized only once, and files may be of any size.

A shard is a header of 256 int32 (magic, version, number of tokens, zeros), followed by the tokens. Supported formats:
magic 20240520, version 1: uint16 (GPT-2);  magic 20240801, version 7: uint32 (Llama 3).

Windows are read from the files on demand. Memory contains only the order of a worker's windows in an epoch
(windows.py): 8 bytes per window, and 16 while the next epoch begins. For 100B tokens and inner.seq_len=1024, that is
0.8 GB and 1.6 GB. Files are not memory-mapped, because each mapping keeps a file open: 100B tokens are about 1000
shards, and the usual limit is 1024 open files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from outerloop.inner.data.corpus import check_rank
from outerloop.inner.data.file_patterns import left_out, match_files
from outerloop.inner.data.fingerprint import fingerprint_of
from outerloop.inner.data.partition import rank_span, training_length
from outerloop.inner.data.tokenization import identity_of, load_tokenizer
from outerloop.inner.data.windows import WindowStream, spread_windows
from outerloop.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HEADER_INTS = 256
HEADER_BYTES = 4 * HEADER_INTS
DTYPES: dict[tuple[int, int], np.dtype] = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}


@dataclass(frozen=True)
class Shard:
    """Tokens [start, stop) of one file, whose tokens begin after `header_bytes`."""

    path: Path
    dtype: np.dtype
    start: int
    stop: int
    header_bytes: int = HEADER_BYTES

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self) -> np.ndarray:
        offset = self.header_bytes + self.start * self.dtype.itemsize
        return np.fromfile(self.path, dtype=self.dtype, count=len(self), offset=offset)


def open_shard(path: Path) -> Shard:
    """Read and check the header of a shard. Raises UserError if it is not a complete llm.c token shard."""
    header = np.fromfile(path, dtype="<i4", count=HEADER_INTS)
    magic, version, tokens = (int(x) for x in header[:3]) if len(header) == HEADER_INTS else (0, 0, 0)
    if (magic, version) not in DTYPES:
        raise UserError(
            f"{path}: magic {magic} version {version} is not an llm.c token shard; allowed: magic 20240520 version 1 "
            "(uint16) and magic 20240801 version 7 (uint32); convert the file or set data=text"
        )
    shard = Shard(path, DTYPES[magic, version], 0, tokens)
    available = (path.stat().st_size - HEADER_BYTES) // shard.dtype.itemsize
    if not 0 <= tokens == available:
        raise UserError(f"{path}: the header states {tokens} tokens, but the file has {available}; copy the file again")
    return shard


class Shards:
    """A read-only array of the tokens in several shards, joined end to end.

    `mend`: advice for the user if a token id is not below `vocab_size`.
    """

    def __init__(self, shards: Sequence[Shard], *, vocab_size: int, mend: str) -> None:
        self.shards, self.vocab_size, self.mend = list(shards), vocab_size, mend
        self.ends = np.cumsum([len(shard) for shard in self.shards])

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.shards else 0

    def __getitem__(self, window: slice) -> np.ndarray:
        pieces = [self._read_checked(shard) for shard in self._pieces(window)]
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.uint16)

    def view(self, window: slice) -> Shards:
        """Return the tokens in the slice `window` as `Shards`, without reading the files."""
        return Shards(list(self._pieces(window)), vocab_size=self.vocab_size, mend=self.mend)

    def _pieces(self, window: slice) -> Iterator[Shard]:
        """Yield the part of each shard inside the slice `window`, in order. Shards without tokens are skipped."""
        start, stop, _ = window.indices(len(self))
        index = int(np.searchsorted(self.ends, start, side="right"))
        while start < stop:
            shard, begin = self.shards[index], int(self.ends[index]) - len(self.shards[index])
            end = min(stop, begin + len(shard))
            if start < end:
                yield replace(shard, start=shard.start + start - begin, stop=shard.start + end - begin)
            start, index = end, index + 1

    def _read_checked(self, shard: Shard) -> np.ndarray:
        tokens = shard.read()
        if tokens.max() >= self.vocab_size:
            raise UserError(
                f"{shard.path}: token id {tokens.max()} is not below the corpus's vocabulary size of {self.vocab_size};"
                f" {self.mend}"
            )
        return tokens


class ShardCorpus:
    """A corpus of token shards. Each worker trains on a contiguous span of the training tokens.

    train, val: the training and the validation tokens. what: describes the corpus in messages. A subclass sets all.
    """

    train: Shards
    val: Shards
    what: str

    def stream(self, *, rank: int, size: int, batch: int, seq_len: int, seed: int) -> WindowStream:
        check_rank(rank, size)
        part = self.train.view(rank_span(len(self.train), rank, size))
        what = f"{self.what}, training tokens of worker {rank} of {size}"
        return WindowStream(part, batch=batch, seq_len=seq_len, seed=seed, what=what)

    def training_text(self) -> Shards:
        return self.train

    def validation(self, *, seq_len: int, sequences: int) -> Tensor:
        what = f"{self.what}, validation tokens"
        return spread_windows(self.val, seq_len=seq_len, sequences=sequences, what=what)


class TokenShards(ShardCorpus):
    """A corpus of llm.c token shards, joined in path order. Each worker trains on a contiguous span of the tokens.

    Args:
        files: paths or globs of the training shards. Those that are also in `val_files` are left out.
        val_files: paths or globs of the validation shards; null: the last 5 % of `files`.
        vocab_size: the vocabulary size of the tokenizer that made the shards (50257 for GPT-2).
        tokenizer: folder of this tokenizer, to be exported with the model; null: the model is exported without it.
    """

    def __init__(
        self, *, files: Sequence[str], val_files: Sequence[str] | None, vocab_size: int, tokenizer: str | None
    ) -> None:
        self.vocab_size = vocab_size
        self._tokenizer = None if tokenizer is None else load_tokenizer(tokenizer)
        val_paths = [] if val_files is None else match_files(val_files, option="data.val_files")
        paths, self.notes = left_out(match_files(files, option="data.files"), val_paths)
        tokens = self._open(paths)
        training = training_length(len(tokens)) if val_files is None else len(tokens)
        self.train = tokens.view(slice(0, training))
        self.val = tokens.view(slice(training, None)) if val_files is None else self._open(val_paths)
        self.what = f"data=tokens ({len(tokens.shards)} files from {tokens.shards[0].path})"

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self._tokenizer

    def tokens(self) -> tuple[Shards, Shards]:
        """Return the training and the validation tokens."""
        return self.train, self.val

    @property
    def tokenizer_identity(self) -> str:
        """Identity of the tokenizer (tokenization.py), or "" if it is unknown."""
        return "" if self._tokenizer is None else identity_of(self._tokenizer)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the tokens (fingerprint.py)."""
        shards = [*self.train.shards, *self.val.shards]
        return fingerprint_of(((shard.path.name, len(shard)) for shard in shards), len(self.train))

    def _open(self, paths: Sequence[Path]) -> Shards:
        shards = [open_shard(path) for path in paths]
        mend = "set data.vocab_size=N to the vocabulary size of the tokenizer that made the file"
        return Shards(shards, vocab_size=self.vocab_size, mend=mend)
