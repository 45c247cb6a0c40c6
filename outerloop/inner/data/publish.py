"""Write a corpus of this machine as token shards, so that the other machines of a run can download it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from outerloop.inner.data.windows import TokenArray
from outerloop.swarm.corpus.folder import CorpusFolder, OnStatus, corpus_path, ignore
from outerloop.swarm.corpus.index import MAX_SHARDS, MAX_VOCAB, NAME, SHARD_BYTES, CorpusIndex, token_bytes
from outerloop.types import UserError


@runtime_checkable
class Publishable(Protocol):
    """A corpus whose tokens can be published."""

    vocab_size: int

    @property
    def tokenizer_identity(self) -> str:
        """Identity of the tokenizer (tokenization.py), or "" if it is unknown."""
        ...

    def tokens(self) -> tuple[TokenArray, TokenArray]:
        """Return the training and the validation tokens."""
        ...


def publish(corpus: Publishable, *, name: str, folder: str | None, on_status: OnStatus = ignore) -> CorpusFolder:
    """Write the corpus to its folder inside `folder` (null: ~/.cache/outerloop/corpus), and return that folder.

    The tokens are read once to compute the hashes, and once more if shards are missing in the folder or damaged.
    Raises UserError if the corpus cannot be published, if it cannot be written to the disk, or if its files change
    meanwhile.
    """
    train, val = corpus.tokens()
    refuse(corpus, name, len(train), len(val))
    index = CorpusIndex(
        name=name,
        vocab_size=corpus.vocab_size,
        tokenizer=corpus.tokenizer_identity,
        train_tokens=len(train),
        val_tokens=len(val),
        shards=tuple(hashlib.sha256(shard).digest() for shard in shards(train, val, corpus.vocab_size)),
    )
    path = corpus_path(folder, index.sha.hex())
    with disk_errors(path):
        out = CorpusFolder.create(path, index, on_status)

    def write_missing() -> None:
        for sha, shard in zip(index.shards, shards(train, val, corpus.vocab_size), strict=True):
            if not out.holds(sha):
                write(out, sha, shard)

    out.complete(write_missing, on_status)
    return out


def write(out: CorpusFolder, sha: bytes, shard: bytes) -> None:
    """Store a shard under its sha256. Raises UserError if it has another one, or if the disk refuses it."""
    if hashlib.sha256(shard).digest() != sha:
        raise UserError(
            f"the files of the corpus {out.index.name} changed while they were published: run the same command again"
            " once no program writes to them"
        )
    with disk_errors(out.path):
        out.write(sha, shard)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise UserError in place of an OSError, e.g. if a disk quota is exceeded, while files are written to `path`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): free some space, or set corpus.folder to a folder on"
            " another disk"
        ) from error


def refuse(corpus: Publishable, name: str, train: int, val: int) -> None:
    """Raise UserError if the name or size of a corpus is not allowed. `train`, `val`: numbers of tokens."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"corpus.share={name!r} must be 1 to 64 letters, digits, spaces and _ . , : + -: set corpus.share=data"
        )
    if corpus.vocab_size > MAX_VOCAB or not (train and val):
        raise UserError(
            f"a corpus of {train} training and {val} validation tokens with {corpus.vocab_size} ids cannot be shared:"
            f" it needs tokens of both kinds and at most {MAX_VOCAB} ids"
        )
    size_bytes, most = (train + val) * token_bytes(corpus.vocab_size), MAX_SHARDS * SHARD_BYTES
    if size_bytes > most:
        raise UserError(
            f"the corpus has {size_bytes / 1e9:.0f} GB of tokens, and at most {most / 1e9:.0f} GB can be shared: leave"
            " out some files"
        )


def shards(train: TokenArray, val: TokenArray, vocab_size: int) -> Iterator[bytes]:
    """Yield the bytes of each shard of the training tokens followed by the validation tokens.

    Raises UserError if a token id is not below `vocab_size`.
    """
    dtype = np.dtype(f"<u{token_bytes(vocab_size)}")
    each = SHARD_BYTES // dtype.itemsize
    for start in range(0, len(train) + len(val), each):
        rest = slice(max(0, start - len(train)), max(0, start + each - len(train)))
        tokens = np.concatenate([train[start : start + each], val[rest]])
        if not 0 <= tokens.min() <= tokens.max() < vocab_size:
            raise UserError(
                f"the corpus has token ids from {tokens.min()} to {tokens.max()}, but they must be at least 0 and below"
                f" its vocabulary size {vocab_size}: use the tokenizer that made the tokens"
            )
        yield tokens.astype(dtype).tobytes()
