"""Read the corpus that the peers of a run send each other (corpus.share), from its folder on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from outerloop.inner.data.tokenization import BYTES, byte_tokenizer, identity_of, load_tokenizer
from outerloop.inner.data.tokens import Shard, ShardCorpus, Shards
from outerloop.swarm.corpus.folder import CorpusFolder, corpus_path
from outerloop.swarm.corpus.index import token_bytes
from outerloop.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SharedCorpus(ShardCorpus):
    """A corpus of token shards without headers. Each worker trains on a contiguous span of the training tokens.

    The index must be in the folder; the shards are needed only when tokens are read.

    Args:
        sha256: sha256 of the corpus's index, in hexadecimal.
        folder: folder of all corpora; null: ~/.cache/outerloop/corpus.
        tokenizer: folder of the tokenizer that made the tokens, to be exported with the model; null: no tokenizer is
            exported, unless the tokens are bytes.
    """

    def __init__(self, *, sha256: str, folder: str | None, tokenizer: str | None) -> None:
        self.folder = CorpusFolder.open(corpus_path(folder, sha256))
        index = self.folder.index
        self.vocab_size, self.tokenizer_identity = index.vocab_size, index.tokenizer
        self._tokenizer = None if tokenizer is None else self._load_tokenizer(tokenizer)
        dtype = np.dtype(f"<u{token_bytes(index.vocab_size)}")
        lengths = index.lengths()
        shards = [
            Shard(self.folder.file(sha), dtype, 0, lengths[sha] // dtype.itemsize, header_bytes=0)
            for sha in index.shards
        ]
        tokens = Shards(shards, vocab_size=index.vocab_size, mend="ask the organizer of the run for another corpus")
        self.train = tokens.view(slice(0, index.train_tokens))
        self.val = tokens.view(slice(index.train_tokens, None))
        missing = sum(self.folder.missing().values())
        where = f"of which {missing / 1e6:,.1f} MB are to be downloaded to" if missing else "in"
        size = f"{index.size_bytes / 1e6:,.1f} MB of tokens"
        self.what = f"data=shared ({index.name}: {size}, {where} {self.folder.path.parent})"

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return byte_tokenizer() if self.tokenizer_identity == BYTES else self._tokenizer

    def _load_tokenizer(self, folder: str) -> PreTrainedTokenizerBase:
        tokenizer = load_tokenizer(folder)
        if self.tokenizer_identity and identity_of(tokenizer) != self.tokenizer_identity:
            raise UserError(
                f"data.tokenizer={folder} has a different vocabulary than the tokenizer of this corpus"
                f" ({self.tokenizer_identity[:16]}): set the folder of that tokenizer, or data.tokenizer=null"
            )
        return tokenizer
